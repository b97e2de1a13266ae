"""The state of a run: the server's state, the clients' states and the counters.

A round maps one ``FederatedState`` to the next; a checkpoint stores this value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from flnl.core.messages import ClientState
from flnl.core.payload import Params
from flnl.core.stored import stored

EXCHANGE, UPDATE = "exchange ", "server "
"""Prefixes of the names in ``parts``, the mapping in which early files stored both kinds of part."""


def _of_both_kinds(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    if "parts" not in fields:
        return fields

    def of(kind: str) -> dict[str, Any]:
        return {name.removeprefix(kind): value for name, value in fields["parts"].items() if name.startswith(kind)}

    return {"params": fields["params"], "exchanges": of(EXCHANGE), "updates": of(UPDATE)}


@stored("ServerState", upgrade=_of_both_kinds)
class ServerState:
    """The global model, and the states of the server's parts."""

    params: Params
    exchanges: Mapping[str, Any] = field(default_factory=dict)  # states of exchanges, by the exchange's name
    updates: Mapping[str, Any] = field(default_factory=dict)  # states of server updates, by class name


PASSES = ("training_passes", "forward_passes", "optimizer_steps")
"""Counters that early versions lack."""


def _of_unknown_passes(fields: Mapping[str, Any]) -> Mapping[str, Any]:
    return {**dict.fromkeys(PASSES), **fields}


@stored("Counters", upgrade=_of_unknown_passes)
class Counters:
    """Cost so far. A participation is one local training (FedCorr, App. B); bytes count everything sent.

    A pass is that of one sample through one network. Passes and steps are None if an early version began the run, which
    did not count them.
    """

    participations: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    left_out: int = 0  # local trainings without a finite result
    unanswered: int = 0  # those of them whose site did not answer, or not as it should
    training_passes: int | None = 0  # forward and backward
    forward_passes: int | None = 0  # without a backward pass: of clients, and of a server that scores their models
    optimizer_steps: int | None = 0  # of all clients

    @property
    def learned_nothing(self) -> bool:
        """Whether there were local trainings, and all were left out."""
        return 0 < self.participations == self.left_out


@dataclass(frozen=True)
class RoundResult:
    """The state after a round, and the round's results."""

    state: FederatedState
    stage: str
    cohort: tuple[int, ...]
    metrics: Mapping[str, float]  # mean loss, clients left out, clients without a step; observations
    evaluation: Mapping[str, float] | None = None  # None if no evaluation was due
    correction: Mapping[str, Any] | None = None  # compared with the truth, if known; None if labels were not corrected


V = TypeVar("V")


class Storage(Protocol[V]):
    """Storage for values that do not fit into memory. The value of a name never changes."""

    def put(self, value: V) -> str:
        """Store a value; return its name. The value is durable only after ``sync``."""

    def get(self, name: str) -> V:
        """The value of this name."""

    def size(self, value: V, /) -> int:
        """Size of a value in memory, in bytes."""

    def sync(self, names: Iterable[str]) -> None:
        """Make these values durable, so that they survive a crash of the machine."""

    def keep_only(self, names: Collection[str]) -> None:
        """Delete all other values."""


@dataclass(frozen=True)
class Spilled(Mapping[int, V]):
    """Values by client, partly in memory and partly in storage; the least recently written leave memory first.

    Args:
        held: the values in memory, in the order in which they were written.
        files: names of the other values in ``store``.
        limit: maximum number of bytes in memory.
        store: storage for the other values; None keeps all in memory.
        size: number of bytes in memory.
    """

    held: Mapping[int, V] = field(default_factory=dict)
    files: Mapping[int, str] = field(default_factory=dict)
    limit: float = float("inf")
    store: Storage[V] | None = None
    size: int = 0

    def __getitem__(self, client: int) -> V:
        if client in self.held:
            return self.held[client]
        name = self.files[client]
        assert self.store is not None, "values in files need a store"
        return self.store.get(name)

    def __contains__(self, client: object) -> bool:
        return client in self.held or client in self.files

    def __iter__(self) -> Iterator[int]:
        yield from sorted({*self.held, *self.files})

    def __len__(self) -> int:
        return len(self.held) + len(self.files)

    def on(self, store: Storage[V], limit: float) -> Spilled[V]:
        """The same values, with at most ``limit`` bytes in memory and the others in ``store``."""
        size = sum(map(store.size, self.held.values()))
        return replace(self, store=store, limit=limit, size=size).updated({})

    def updated(self, values: Mapping[int, V], without: Collection[int] = ()) -> Spilled[V]:
        """A copy in which ``values`` replace their clients' values and the clients ``without`` have none."""
        removed = {*values, *without}
        held = dict(self.held)
        previous = [held.pop(client) for client in removed if client in held]
        files = {c: name for c, name in self.files.items() if c not in removed} if self.files else {}
        held.update(values)
        if self.store is None:
            return replace(self, held=held, files=files)
        size = self.size + sum(map(self.store.size, values.values())) - sum(map(self.store.size, previous))
        for client in list(held) if size > self.limit else ():
            value = held.pop(client)
            size -= self.store.size(value)
            files[client] = self.store.put(value)
            if size <= self.limit:
                break
        return replace(self, held=held, files=files, size=size)


@stored("FederatedState")
class FederatedState:
    """The complete state of a run at the end of a round; the content of a checkpoint."""

    round: int
    server: ServerState
    clients: Spilled[ClientState] = field(default_factory=Spilled)
    counters: Counters = field(default_factory=Counters)

    def client(self, client: int) -> ClientState:
        """The client's state; an empty one if it keeps nothing."""
        return self.clients[client] if client in self.clients else ClientState()

    def keeping(self, states: Mapping[int, ClientState]) -> FederatedState:
        """A copy with these clients' states replaced."""
        kept = {client: state for client, state in states.items() if not state.empty}
        return replace(self, clients=self.clients.updated(kept, states.keys() - kept.keys()))

    def counted(self, **more: int) -> FederatedState:
        """A copy with the named counters increased; an unknown one stays unknown."""
        before = {name: getattr(self.counters, name) for name in more}
        counts = {name: before[name] + by for name, by in more.items() if before[name] is not None}
        return replace(self, counters=replace(self.counters, **counts))
