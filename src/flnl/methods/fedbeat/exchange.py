"""FedBeat's exchange: moments of the clients' models down once, a transition network down once, counts up."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from flnl.core.execution import ClientJob
from flnl.core.findings import Finding, Scalar, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, Gathered, Opened, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import Exchange, Setting, Wants
from flnl.core.payload import Params, Payload
from flnl.core.ranges import NonNegative, PositiveCount, Share, StageNumber
from flnl.core.step import FEATURES
from flnl.core.stored import stored
from flnl.methods.fedbeat.ensemble import DistilledSet, ModelMoments
from flnl.methods.fedbeat.transition import Transitions, log_transitions
from flnl.parts.messages import UsedSamples
from flnl.parts.shared_layers import SharedLayers


@stored("TransitionNetwork")
class TransitionNetwork:
    """Sent to a client once: the network whose features the last layer turns into transition matrices."""

    params: Params


@stored("EnsembleState")
class EnsembleState:
    """The server's state."""

    moments: ModelMoments | None = None  # from the end of the warm-up until samples are labelled
    body: Params | None = None  # the transition network
    served: tuple[int, ...] = ()  # clients that have it


@dataclass(frozen=True)
class LabelByEnsemble:
    """Job: the client draws its members and keeps the samples of which they are sure; their number is sent."""

    members: PositiveCount
    threshold: Share
    scale: NonNegative

    def __call__(self, network: Model, task: ClientTask) -> Opened:
        """Keep them; nothing where no models came to make an ensemble of."""
        moments, total = task.broadcast.extras.get(ModelMoments), torch.zeros(())
        if moments is None:
            return Opened(task.client, Payload())
        for number in range(self.members):
            member = moments.member(task.broadcast.params, task.stream("ensemble", number), self.scale)
            total = total + network.at(member).outputs(task.samples)["logits"].double().softmax(1)
        found = DistilledSet.of(total / self.members, task.labels, self.threshold)
        return Opened(task.client, Payload(UsedSamples(int(found.chosen.sum()))), Payload(found))


@dataclass(frozen=True)
class Ensemble(Exchange):
    """The models of the last round before stage ``stage`` make an ensemble, which labels samples as the stage begins.

    Every client draws ``members`` of its own; a sample whose largest mean probability is above ``threshold`` is
    labelled by it. In the stage, clients report how many samples they have labelled. From the next stage on, a client
    that comes for the first time gets the transition network, and keeps a matrix of each of its samples.
    """

    sends: ClassVar[tuple[type, ...]] = (ModelMoments, TransitionNetwork, Transitions)
    reports: ClassVar[tuple[type, ...]] = (UsedSamples,)
    keeps: ClassVar[tuple[type, ...]] = (DistilledSet, Transitions)
    members: PositiveCount
    threshold: Share
    scale: NonNegative
    sample_buffers: bool
    stage: StageNumber

    def caution(self, setting: Setting) -> str | None:
        """Warns that no models are there to make an ensemble of."""
        if sum(setting.lengths[: self.stage - 1]) or not sum(setting.lengths[self.stage - 1 :]):
            return None
        return f"{setting.key} makes an ensemble of the models before stage {self.stage}, where there is no round"

    def init(self, clients: int, params: Params) -> EnsembleState:
        return EnsembleState()

    def _now(self, clock: Clock) -> bool:
        return clock.stage < self.stage and clock.round + 1 == sum(clock.lengths[: self.stage - 1])

    def wants_models(self, clock: Clock) -> Wants:
        """After they are combined, in the last round before the stage."""
        return "after" if self._now(clock) else "no"

    def before_round(self, state: EnsembleState, clock: Clock) -> ClientJob[Opened] | None:
        """The labelling, before the first round of the stage."""
        first = clock.stage == self.stage and clock.stage_round == 0 and clock.round > 0
        return LabelByEnsemble(self.members, self.threshold, self.scale) if first else None

    def broadcast(self, state: EnsembleState, clock: Clock) -> tuple[Any, ...]:
        return () if state.moments is None or clock.stage != self.stage else (state.moments,)

    def send(self, state: EnsembleState, client: int, clock: Clock) -> tuple[Any, ...]:
        """The transition network, to a client that has not got it."""
        ready = state.body is not None and clock.stage > self.stage and client not in state.served
        return (TransitionNetwork(state.body),) if ready and state.body is not None else ()

    def begin(self, network: Model, task: ClientTask) -> tuple[Payload, Payload]:
        """The matrices of the client's samples, computed when the network comes."""
        sent, last = (task.broadcast.extras.get(kind) for kind in (TransitionNetwork, SharedLayers))
        if isinstance(sent, TransitionNetwork) and isinstance(last, SharedLayers):
            features = network.at(sent.params).outputs(task.samples, names=(FEATURES,))[FEATURES]
            found = Transitions(log_transitions(last.values, features).exp())
            return Payload(found), Payload(found)
        kept = task.state.extras.get(Transitions)
        return (Payload() if kept is None else Payload(kept)), Payload()

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """How many samples the client has labelled, while the transition network learns from them."""
        own = task.state.extras.get(DistilledSet)
        if own is None or task.broadcast.stage != self.stage:
            return Payload(), Payload()
        return Payload(UsedSamples(int(own.chosen.sum()))), Payload()

    def receive(self, state: EnsembleState, reports: Mapping[int, Payload], seed: int) -> EnsembleState:
        """Without the moments, once clients have labelled their samples."""
        labelled = state.moments is not None and any(report.get(UsedSamples) is not None for report in reports.values())
        return replace(state, moments=None) if labelled else state

    def gathered(self, state: EnsembleState, gathered: Gathered) -> EnsembleState:
        """The moments of the models, or the transition network of the round; who has got it."""
        clock = gathered.broadcast.clock
        if clock.stage > self.stage:
            return replace(state, served=tuple(sorted({*state.served, *(r.client for r in gathered.results)})))
        if gathered.combined is None:
            return state
        if self._now(clock):
            models = [r.params for r in gathered.results if r.params is not None]
            moments = ModelMoments.of(models, gathered.combined.params, buffers=self.sample_buffers)
            return replace(state, moments=moments)
        return EnsembleState(body=gathered.combined.params) if clock.stage == self.stage else state

    def findings(self, state: EnsembleState, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """The samples that the ensemble labels otherwise, and the share that it labels at all."""
        return tuple(self._found(clients))

    def _found(self, clients: Mapping[int, ClientState]) -> Iterator[Finding]:
        if kept := kept_by_client(clients, DistilledSet):
            chosen: list[Tensor] = [own.chosen for own in kept.values()]
            yield Scalar("distilled", float(torch.cat(chosen).double().mean()))
            for client, own in kept.items():
                labels = torch.where(own.chosen, own.labels, own.judged)
                yield SuspectedSamples(client, labels != own.judged, None, own.judged, labels)
