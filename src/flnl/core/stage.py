"""A stage: consecutive rounds with the same parts, which it calls on the server; what they return is checked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from flnl.core import checked
from flnl.core.messages import ClientState, Clock, Combined
from flnl.core.parts import (
    Aggregator,
    BatchRule,
    ClientSampler,
    Exchange,
    GradientTransform,
    LabelCorrector,
    LossTerm,
    Part,
    Sampling,
    ServerUpdate,
    Wants,
    When,
)
from flnl.core.payload import Params, Payload
from flnl.core.state import ServerState
from flnl.core.training import Training


@dataclass(frozen=True)
class Correcting:
    """Label correction in a stage: the corrector, its rule, and when it runs."""

    corrector: LabelCorrector
    rule: str
    when: When


@dataclass(frozen=True)
class Stage:
    """Consecutive rounds with the same parts. A correction belongs to the stage at whose end it runs."""

    name: str
    number: int  # from 1
    rounds: int | None  # number of rounds; or else
    passes: int | None  # number of passes over all clients
    sampler: ClientSampler
    batch: BatchRule
    local: Mapping[str, LossTerm]
    gradient: GradientTransform | None
    aggregator: Aggregator[Any]
    server: ServerUpdate
    exchange: Mapping[str, Exchange]  # those active in this stage; the others are silent
    correct: Correcting | None
    restart: bool = False  # start from the run's initial model
    replaces: frozenset[str] = frozenset()  # slots in which the stage has parts in place of the method's
    train: Mapping[str, Any] = field(default_factory=dict)  # values of local training in place of the run's

    def training(self, run: Training) -> Training:
        """How clients train in the stage's first round, but for the learning rate; ``run`` is the run's training."""
        return run.at(0, self.train)

    def training_at(self, run: Training, clock: Clock) -> Training:
        """How clients train in a round of the stage; ``run`` is the run's training."""
        rounds, of_stage = sum(clock.lengths), clock.lengths[self.number - 1]
        return run.at(clock.round, self.train, clock.stage_round, rounds=rounds, stage_rounds=of_stage)

    def rounds_in_pass(self, clients: int) -> int:
        """Number of rounds in which each of ``clients`` clients is visited once."""
        return math.ceil(clients / self.size(clients))

    def length(self, clients: int) -> int:
        """Number of rounds of the stage."""
        return self.rounds if self.rounds is not None else (self.passes or 0) * self.rounds_in_pass(clients)

    def corrects_after(self, stage_round: int, clients: int) -> bool:
        """Whether labels are corrected after this round of the stage (from 0)."""
        if self.correct is None:
            return False
        if self.correct.when == "pass":
            return (stage_round + 1) % self.rounds_in_pass(clients) == 0
        return stage_round + 1 == self.length(clients)

    def acting(self) -> Iterator[tuple[str, Part]]:
        """Every part that acts in the stage: its slot, or slot and name as in ``local/fedprox``, and the part."""
        yield "sampler", self.sampler
        yield "batch", self.batch
        yield "aggregator", self.aggregator
        yield "server", self.server
        yield from ((f"local/{name}", term) for name, term in self.local.items())
        if self.gradient is not None:
            yield "gradient", self.gradient
        yield from ((f"exchange/{name}", exchange) for name, exchange in self.exchange.items())
        if self.correct is not None:
            yield "corrector", self.correct.corrector

    def key(self, place: str) -> str:
        """The configuration key of the part at a ``place`` of ``acting``, such as ``method.local.fedprox``."""
        where = f"method.stages.{self.name}" if place.split("/")[0] in self.replaces else "method"
        return f"{where}.{place.replace('/', '.')}"

    def size(self, clients: int) -> int:
        """The largest number of clients in a round, of ``clients`` with data."""
        return checked.size(self.named("sampler"), self.sampler.size(clients))

    def named(self, place: str) -> str:
        """The key and the class of the part at a ``place`` of ``acting``, such as ``method.aggregator (Mean)``."""
        return f"{self.key(place)} ({type(dict(self.acting())[place]).__name__})"

    def parts(self) -> dict[str, str]:
        """Descriptions of the active parts with their values, by slot; empty slots are omitted."""
        shown = {
            "length": f"{self.rounds} rounds" if self.rounds is not None else f"{self.passes} passes",
            "start": "from the initial model" if self.restart else "",
            "train": ", ".join(f"{name}={_short(value)}" for name, value in self.train.items()),
            "sampler": _shown(self.sampler),
            "batch": _shown(self.batch),
            "local": " + ".join(_shown(term, name) for name, term in self.local.items()),
            "gradient": "" if self.gradient is None else _shown(self.gradient),
            "exchange": ", ".join(_shown(exchange, name) for name, exchange in self.exchange.items()),
            "aggregator": _shown(self.aggregator),
            "server": _shown(self.server),
        }
        if self.correct is not None:
            when = "after each pass" if self.correct.when == "pass" else "after the last round"
            shown["corrector"] = f"{self.correct.rule} {when} by {_shown(self.correct.corrector)}"
        return {slot: text for slot, text in shown.items() if text}

    def describe(self) -> str:
        """The active parts on one line."""
        return f"{self.name}: {'; '.join(self.parts().values())}"

    # ------------------------------------------------------------------- calls of parts; what they return is checked

    def sample(self, sampling: Sampling) -> list[int]:
        """The cohort, in order of client."""
        most = self.size(len(sampling.clients))
        return sorted(checked.cohort(self.named("sampler"), self.sampler(sampling), sampling.clients, most))

    def relayed(
        self, states: Mapping[str, Any], client: int, clock: Clock, clients: Mapping[int, ClientState]
    ) -> list[Any]:
        """What exchanges relay to a ``client`` of other clients; ``clients`` are all clients' states."""
        return [
            message
            for name, exchange in self.exchange.items()
            for message in checked.messages(name, "relay", exchange.relay(states[name], client, clock, clients))
        ]

    def wants(self, clock: Clock) -> dict[str, Wants]:
        """Whether each exchange wants the clients' models of this round."""
        return {name: checked.wants(name, exchange.wants_models(clock)) for name, exchange in self.exchange.items()}

    def combine(self, received: Params, values: Sequence[Any], known: Payload) -> Combined:
        """The cohort's combined model, of the aggregator's ``values`` by block."""
        combined = self.aggregator.combine(received, values, known)
        return checked.combined(self.named("aggregator"), combined, received)

    def updated(self, server: ServerState, combined: Params, cohort: Sequence[int], clients: int) -> ServerState:
        """The next global model, of the ``combined`` one of the ``cohort``, and what the server update keeps."""
        kept = server.updates[self.update] if self.update in server.updates else self.server.init(server.params)
        returned = self.server(server.params, combined, cohort, clients, kept)
        params, kept = checked.updated(self.named("server"), returned, server.params)
        updates = server.updates if kept is None else {**server.updates, self.update: kept}
        return replace(server, params=params, updates=updates)

    @property
    def update(self) -> str:
        """The name below which the server update keeps its state."""
        return type(self.server).__name__

    def shown(self, server: ServerState) -> Params:
        """The model to evaluate and save, as the server update defines it."""
        kept = server.updates.get(self.update)
        return server.params if kept is None else self.server.shown(server.params, kept)

    def chosen(self, known: Payload, clients: Sequence[int]) -> list[int]:
        """The clients that correct their labels."""
        assert self.correct is not None, "the stage corrects"
        corrector = self.correct.corrector
        chosen = corrector.chosen(self.correct.rule, known, clients)
        return checked.cohort(f"{type(corrector).__name__}.chosen", chosen, clients)


def messages(exchanges: Mapping[str, Exchange], states: Mapping[str, Any], clock: Clock) -> Callable[[int], Payload]:
    """What ``exchanges`` in these ``states`` send to a client, by its number; messages for all are made once."""
    to_all = [
        message
        for name, exchange in exchanges.items()
        for message in checked.messages(name, "broadcast", exchange.broadcast(states[name], clock))
    ]

    def sent(client: int) -> Payload:
        to_each = (
            checked.messages(name, "send", exchange.send(states[name], client, clock))
            for name, exchange in exchanges.items()
        )
        return Payload(*to_all, *(message for messages in to_each for message in messages))

    return sent


def _shown(part: Any, name: str | None = None) -> str:
    """A part's name and values, such as ``Uniform(fraction=0.5)``."""
    values = ", ".join(f"{f.name}={_short(getattr(part, f.name))}" for f in fields(part))
    return f"{name or type(part).__name__}({values})" if values else name or type(part).__name__


def _short(value: Any) -> Any:
    """A value to print: floats, also those in lists, with at most six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return type(value)(map(_short, value)) if type(value) in (list, tuple) else value
