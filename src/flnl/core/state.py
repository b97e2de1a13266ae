"""The state of a run: the server's, what clients keep, and the counters.

``FederatedState`` goes into a round and comes out of it; a checkpoint is this value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from flnl.core.messages import ClientState
from flnl.core.payload import Params
from flnl.core.stored import stored

EXCHANGE, UPDATE = "exchange ", "server "
"""What begins a name in ``parts``, the one mapping that files had for both kinds of part at first."""


def _of_both_kinds(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    if "parts" not in fields:
        return fields

    def of(kind: str) -> dict[str, Any]:
        return {name.removeprefix(kind): value for name, value in fields["parts"].items() if name.startswith(kind)}

    return {"params": fields["params"], "exchanges": of(EXCHANGE), "updates": of(UPDATE)}


@stored("ServerState", upgrade=_of_both_kinds)
@dataclass(frozen=True)
class ServerState:
    """The global model, and the state of each server-side part that has any."""

    params: Params
    exchanges: Mapping[str, Any] = field(default_factory=dict)  # by the exchange's name
    updates: Mapping[str, Any] = field(default_factory=dict)  # of server updates, by the name of their class


@stored("Counters")
@dataclass(frozen=True)
class Counters:
    """Cost so far. A participation is one local training (FedCorr, App. B); bytes are everything that travelled."""

    participations: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    left_out: int = 0  # trainings that came back non-finite


@dataclass(frozen=True)
class RoundResult:
    """The state after a round and what happened in it."""

    state: FederatedState
    stage: str
    cohort: tuple[int, ...]
    metrics: Mapping[str, float]  # mean training loss, clients left out, clients without a step; what was observed
    evaluation: Mapping[str, float] | None = None  # where one fell due
    correction: Mapping[str, Any] | None = None  # against the truth where there is one, where labels were corrected


V = TypeVar("V")


class Storage(Protocol[V]):
    """Where values go that memory does not hold. What a name stands for never changes."""

    def put(self, value: V) -> str:
        """Store a value; gives its name. It is there for good after ``sync``."""

    def get(self, name: str) -> V:
        """The value of this name."""

    def size(self, value: V, /) -> int:
        """What a value takes in memory, bytes."""

    def sync(self, names: Iterable[str]) -> None:
        """Have these values outlive the machine's end."""

    def keep_only(self, names: Collection[str]) -> None:
        """Delete every value that is not named."""


@dataclass(frozen=True)
class Shelved(Mapping[int, V]):
    """Values by client. Those that were written longest ago leave the memory first.

    Args:
        held: those in memory, in the order in which they were written.
        files: names of the files of the others.
        limit: bytes that may be held.
        shelf: where the others go; None holds all.
        size: bytes that are held.
    """

    held: Mapping[int, V] = field(default_factory=dict)
    files: Mapping[int, str] = field(default_factory=dict)
    limit: float = float("inf")
    shelf: Storage[V] | None = None
    size: int = 0

    def __getitem__(self, client: int) -> V:
        if client in self.held:
            return self.held[client]
        name = self.files[client]
        assert self.shelf is not None, "what is in files has a shelf"
        return self.shelf.get(name)

    def __contains__(self, client: object) -> bool:
        return client in self.held or client in self.files

    def __iter__(self) -> Iterator[int]:
        yield from sorted({*self.held, *self.files})

    def __len__(self) -> int:
        return len(self.held) + len(self.files)

    def on(self, shelf: Storage[V], limit: float) -> Shelved[V]:
        """The same values, with ``limit`` bytes of them in memory and the others on ``shelf``."""
        size = sum(map(shelf.size, self.held.values()))
        return replace(self, shelf=shelf, limit=limit, size=size).updated({})

    def updated(self, values: Mapping[int, V], without: Collection[int] = ()) -> Shelved[V]:
        """With ``values`` in the place of what their clients had, and nothing of the clients ``without``."""
        gone = {*values, *without}
        held = dict(self.held)
        was = [held.pop(client) for client in gone if client in held]
        files = {c: name for c, name in self.files.items() if c not in gone} if self.files else {}
        held.update(values)
        if self.shelf is None:
            return replace(self, held=held, files=files)
        size = self.size + sum(map(self.shelf.size, values.values())) - sum(map(self.shelf.size, was))
        for client in list(held) if size > self.limit else ():
            value = held.pop(client)
            size -= self.shelf.size(value)
            files[client] = self.shelf.put(value)
            if size <= self.limit:
                break
        return replace(self, held=held, files=files, size=size)


@stored("FederatedState")
@dataclass(frozen=True)
class FederatedState:
    """Everything that a run is at the end of a round. A checkpoint is this value."""

    round: int
    server: ServerState
    clients: Shelved[ClientState] = field(default_factory=Shelved)
    counters: Counters = field(default_factory=Counters)

    def client(self, client: int) -> ClientState:
        """What this client keeps."""
        return self.clients[client] if client in self.clients else ClientState()

    def keeping(self, states: Mapping[int, ClientState]) -> FederatedState:
        """The state with these clients keeping what is given here."""
        kept = {client: state for client, state in states.items() if not state.empty}
        return replace(self, clients=self.clients.updated(kept, states.keys() - kept.keys()))

    def counted(self, **more: int) -> FederatedState:
        """The state with the named counters increased."""
        now = {name: getattr(self.counters, name) + by for name, by in more.items()}
        return replace(self, counters=replace(self.counters, **now))
