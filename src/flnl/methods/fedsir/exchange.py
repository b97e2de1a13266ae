"""FedSIR's exchange: two numbers of each client tell who is clean; directions of the clean relabel the others."""

import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn

from flnl.core.execution import ClientJob
from flnl.core.findings import Finding, NoisyClients, SuspectedSamples
from flnl.core.messages import ClientResult, ClientState, ClientTask, Clock, Fit, Gathered, Opened, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import Exchange, Part, Setting, Wants
from flnl.core.payload import Params, Payload
from flnl.core.ranges import Count, NonNegative, PositiveCount, StageNumber
from flnl.core.reported import MayBeInfinite
from flnl.core.step import FEATURES
from flnl.core.stored import stored
from flnl.methods.fedsir.subspaces import (
    ClassConsensus,
    ClassSubspaces,
    alikeness,
    consensus,
    noisy_by_alikeness,
    relabelled,
)
from flnl.models.outputs import why_no_features
from flnl.numerics.averaging import divided, summed
from flnl.parts.messages import ClientTag, ClientTags

log = logging.getLogger(__name__)


@stored("Alikeness")
class Alikeness:
    """Sent to the server once: how alike the directions of the client's classes are."""

    mean: Annotated[float, MayBeInfinite()]
    energy: Annotated[float, MayBeInfinite()]


@stored("ReferenceModel")
class ReferenceModel:
    """Sent when labels are renewed: the mean of the clean clients' models of the round before."""

    params: Params


@stored("RelabelledSamples")
class RelabelledSamples:
    """Read in the client's visit, and kept by a noisy one until its labels are renewed."""

    labels: Tensor  # int64 [n]
    agreed: Tensor  # bool [n], whether both scores proposed the label; nowhere before the first renewal
    judged: Tensor  # int64 [n], the labels that the client held


@stored("SubspaceState")
class SubspaceState:
    """The server's state."""

    noisy: Tensor  # bool [N]
    statistics: Tensor  # float64 [N, 2], mean and energy; NaN for a client that has not been compared
    reference: Params | None = None  # before a round that renews labels
    agreed: ClassConsensus | None = None  # in such a round

    @property
    def compared(self) -> bool:
        """Whether clients have been compared."""
        return not bool(self.statistics.isnan().all())


@dataclass(frozen=True)
class MeasureSubspaces:
    """Job: clean clients report the directions of their classes under the reference model."""

    residuals: PositiveCount

    def __call__(self, network: Model, task: ClientTask) -> Opened:
        """The report; of a noisy client an empty one."""
        reference = task.broadcast.extras.get(ReferenceModel)
        if reference is None:
            return Opened(task.client, Payload())
        features = network.at(reference.params).outputs(task.samples, names=(FEATURES,))[FEATURES].float()
        return Opened(
            task.client, Payload(ClassSubspaces.of(features, task.labels, network.num_classes, self.residuals))
        )


@dataclass(frozen=True)
class Subspaces(Exchange):
    """In the last round before stage ``stage``, clients are split; every ``every`` rounds of it, the noisy relabel.

    Clients are compared by their trained models' features of the labels' classes, as far as a class has ``fewest``
    samples. Labels are renewed in rounds of the stage whose number from 0 is a multiple of ``every``, but for the first
    (0: never), from the labels that the client holds: by ``residuals`` directions, to which clean clients with
    ``fewest_shared`` samples of a class contribute, if the agreement is at least ``strength``. Features are of samples
    without augmentation; with ``inference_augment`` clients are compared by augmented ones, as in the authors' program.
    """

    sends: ClassVar[tuple[type, ...]] = (ClientTag, ReferenceModel, ClassConsensus, RelabelledSamples)
    reports: ClassVar[tuple[type, ...]] = (Alikeness, ClassSubspaces)
    keeps: ClassVar[tuple[type, ...]] = (RelabelledSamples,)
    knows: ClassVar[tuple[type, ...]] = (ClientTags,)
    reveals: ClassVar[Mapping[type, float]] = {ClassSubspaces: math.inf}  # samples of each class, and their features
    fewest: PositiveCount
    every: Count
    residuals: PositiveCount
    fewest_shared: PositiveCount
    strength: NonNegative
    inference_augment: bool
    stage: StageNumber

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        """Why there are no directions: the network names no features."""
        return why_no_features(network)

    def caution(self, setting: Setting) -> str | None:
        """Warns that clients are never compared, or that labels are never renewed."""
        rounds = setting.lengths[self.stage - 1]
        if not sum(setting.lengths[: self.stage - 1]):
            return f"{setting.key} compares clients before stage {self.stage}, which is the first: nobody is noisy"
        if not rounds or 0 < self.every < rounds or not self.every:
            return None
        return f"{setting.key}.every={self.every}: stage {self.stage} has {rounds} rounds, so no label is ever renewed"

    def init(self, clients: int, params: Params) -> SubspaceState:
        nothing = torch.full((clients, 2), torch.nan, dtype=torch.float64)
        return SubspaceState(torch.zeros(clients, dtype=torch.bool), nothing)

    def _compares(self, clock: Clock) -> bool:
        return clock.stage == self.stage - 1 and clock.last_of_stage

    def _renews(self, round: int) -> bool:
        return self.every > 0 and round > 0 and round % self.every == 0

    def _renewal(self, clock: Clock) -> bool:
        return clock.stage == self.stage and self._renews(clock.stage_round)

    def _now(self, state: SubspaceState, clock: Clock) -> bool:
        return self._renewal(clock) and state.reference is not None

    def before_round(self, state: SubspaceState, clock: Clock) -> ClientJob[Opened] | None:
        """Directions of the clean clients, before a round that renews labels."""
        return MeasureSubspaces(self.residuals) if self._renewal(clock) else None

    def send(self, state: SubspaceState, client: int, clock: Clock) -> tuple[Any, ...]:
        """The tag; when labels are renewed the reference, to clean clients first, then to others with the consensus."""
        if not state.compared:
            return ()
        noisy = bool(state.noisy[client])
        tag = ClientTag(noisy)
        if state.reference is None or not self._now(state, clock) or noisy == (state.agreed is None):
            return (tag,)
        reference = ReferenceModel(state.reference)
        return (tag, reference, state.agreed) if noisy else (tag, reference)

    def begin(self, network: Model, task: ClientTask) -> tuple[Payload, Payload]:
        """The labels to train on, renewed if the consensus has come."""
        held = task.labels
        kept = task.state.extras.get(RelabelledSamples)
        agreed, reference = (task.broadcast.extras.get(kind) for kind in (ClassConsensus, ReferenceModel))
        if isinstance(agreed, ClassConsensus) and isinstance(reference, ReferenceModel):
            features = network.at(reference.params).outputs(task.samples, names=(FEATURES,))[FEATURES]
            found = RelabelledSamples(*relabelled(features, held, agreed), held)
            return Payload(found), Payload(found)
        if kept is not None:
            return Payload(kept), Payload()
        return Payload(RelabelledSamples(held, torch.zeros_like(held, dtype=torch.bool), held)), Payload()

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """How alike the directions of the trained model are, in the round of the comparison."""
        if not self._compares(task.broadcast.clock):
            return Payload(), Payload()
        augment = task.stream("alikeness") if self.inference_augment else None
        features = network.logits(task.samples, augment, output=FEATURES)
        return Payload(Alikeness(*alikeness(features, task.labels, self.fewest))), Payload()

    def wants_models(self, clock: Clock) -> Wants:
        """Before they are combined, in the round of the comparison; after, when the next round renews labels."""
        if self._compares(clock):
            return "before"
        return "after" if clock.stage == self.stage and self._renews(clock.stage_round + 1) else "no"

    def receive(self, state: SubspaceState, reports: Mapping[int, Payload], seed: int) -> SubspaceState:
        """The consensus of the directions, if any were sent."""
        sent = {client: one for client, report in reports.items() if (one := report.get(ClassSubspaces)) is not None}
        return replace(state, agreed=consensus(sent, self.fewest_shared, self.strength)) if sent else state

    def gathered(self, state: SubspaceState, gathered: Gathered) -> SubspaceState:
        """The split of the clients in its round; the reference for the next round, if that renews labels."""
        clock = gathered.broadcast.clock
        if self._compares(clock):
            return self._split(state, gathered)
        state = replace(state, reference=None, agreed=None)
        if self.wants_models(clock) == "no" or not bool(state.noisy.any()):
            return state
        clean = [r for r in gathered.results if not state.noisy[r.client]]
        if not clean:
            log.warning("no clean client took part in round %d: labels are not renewed after it", clock.round + 1)
            return state
        return replace(state, reference=_mean(gathered.broadcast.params, clean))

    def _split(self, state: SubspaceState, gathered: Gathered) -> SubspaceState:
        sent = {r.client: one for r in gathered.results if (one := r.reports.get(Alikeness)) is not None}
        if not sent:
            return state
        clients, rows = list(sent), [(one.mean, one.energy) for one in sent.values()]
        noisy, statistics = torch.zeros_like(state.noisy), torch.full_like(state.statistics, torch.nan)
        noisy[clients] = torch.from_numpy(noisy_by_alikeness(rows, gathered.seed))
        statistics[clients] = torch.from_numpy(np.array(rows, np.float64))
        return SubspaceState(noisy, statistics)

    def known(self, state: SubspaceState) -> tuple[Any, ...]:
        return (ClientTags(state.noisy),)

    def own(self, state: SubspaceState, client: int) -> SubspaceState:
        """Whether the client is noisy, and what it has sent; zeros if it has sent nothing and others were compared."""
        noisy, statistics = torch.zeros_like(state.noisy), torch.full_like(state.statistics, torch.nan)
        if state.compared:
            noisy[client], statistics[client] = state.noisy[client], state.statistics[client].nan_to_num()
        return SubspaceState(noisy, statistics)

    def findings(self, state: SubspaceState, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """The split once clients have been compared, and on noisy clients the samples with another label."""
        return tuple(self._found(state, clients)) if state.compared else ()

    def _found(self, state: SubspaceState, clients: Mapping[int, ClientState]) -> Iterator[Finding]:
        mean, energy = state.statistics.unbind(1)
        yield NoisyClients(state.noisy, {"off_mean": mean, "off_energy": energy})
        for client, kept in kept_by_client(clients, RelabelledSamples).items():
            yield SuspectedSamples(client, kept.labels != kept.judged, None, kept.judged, kept.labels)


def _mean(params: Params, results: Sequence[ClientResult]) -> Params:
    """The mean of the clients' models, weighted by samples."""
    return divided(params, [summed(params, results, [float(r.num_samples) for r in results])])
