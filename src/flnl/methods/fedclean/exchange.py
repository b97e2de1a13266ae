"""FedClean's exchange: clients train alone once and keep what they infer; how many samples they use goes up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from flnl.core.execution import ClientJob
from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, Opened, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import Exchange
from flnl.core.payload import Payload
from flnl.methods.fedclean.learner import Learner
from flnl.methods.fedclean.sets import TrainingSets
from flnl.parts.messages import UsedSamples


@dataclass(frozen=True)
class Infer:
    """Job: train alone and keep the inferred labels; nothing is sent."""

    learner: Learner

    def __call__(self, network: Model, task: ClientTask) -> Opened:
        """Keep them."""
        found = TrainingSets.of(task.labels, self.learner.inferred(network, task))
        return Opened(task.client, Payload(), Payload(found))


@dataclass(frozen=True)
class InferredLabels(Exchange):
    """Before the first round every client trains alone by ``learner``; its model is dropped, its inferred labels stay.

    In each round a client reports how many of its samples have been accepted so far, for the mean (ASSA).
    """

    networks: ClassVar[int | None] = 1
    reports: ClassVar[tuple[type, ...]] = (UsedSamples,)
    keeps: ClassVar[tuple[type, ...]] = (TrainingSets,)
    learner: Learner

    def before_round(self, state: Any, clock: Clock) -> ClientJob[Opened] | None:
        return Infer(self.learner) if clock.round == 0 else None

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        sets = task.state.extras.one(TrainingSets)
        return Payload(UsedSamples(int(sets.used.sum()))), Payload()

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """The samples whose label is not the inferred one."""
        kept = kept_by_client(clients, TrainingSets)
        return tuple(SuspectedSamples(c, ~own.clean, None, own.judged, own.inferred) for c, own in kept.items())
