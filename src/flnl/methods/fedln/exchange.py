"""FedLN's exchanges: energies up, once, from which clients' weights follow; labels of neighbours, which stay."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor, nn

from flnl.core.execution import ClientJob
from flnl.core.findings import EstimatedNoise, Finding, NoisyClients, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, Gathered, Opened, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import Exchange, Part, Setting, Wants
from flnl.core.payload import Params, Payload
from flnl.core.ranges import PositiveCount, Share, StageNumber
from flnl.core.stored import stored
from flnl.methods.fedln.energy import Effect, Energies, Suspects, energies, noisy_shares, weights

ROWS = 1024
"""Number of samples whose distances to all others are in memory at once."""


def nearest_labels(features: Tensor, labels: Tensor, neighbours: int, classes: int) -> Tensor:
    """The most frequent label of each sample's nearest ``neighbours``, or of all samples if there are fewer; int64 [n].

    The sample itself is one of them. Of samples at the same distance the earlier one is nearer; of labels that are
    equally frequent the lowest wins.

    Args:
        features: float64 [n, d], compared by Euclidean distance.
        labels: int64 [n].
        neighbours: k, at least 1.
        classes: K.
    """
    hot, found = F.one_hot(labels, classes), []
    for rows in features.split(ROWS):
        near = torch.cdist(rows, features, compute_mode="donot_use_mm_for_euclid_dist").argsort(dim=1, stable=True)
        found.append(hot[near[:, :neighbours]].sum(1).argmax(1))
    return torch.cat(found) if found else labels


@dataclass(frozen=True)
class NoiseAwareWeights:
    """Known on the server: each client's weight, float64 [N]; NaN for the number of its samples."""

    value: Tensor


@stored("EnergyState")
class EnergyState:
    """The server's state."""

    shares: Tensor  # float64 [N], of noisy samples; NaN for a client that has not been judged
    weights: Tensor  # float64 [N]; NaN likewise


@dataclass(frozen=True)
class NoiseAware(Exchange):
    """In the first round of stage ``stage``, the cohort's energies decide how much each client counts from then on.

    ``apply=same``: from this round's mean on, for which the server must hold the models; ``next``: from the next.
    Suspects are samples whose energy after training is ``above`` the reference, as in the authors' program, or
    ``below``. Energies are of images without augmentation unless ``inference_augment``, as there.
    """

    reports: ClassVar[tuple[type, ...]] = (Energies,)
    knows: ClassVar[tuple[type, ...]] = (NoiseAwareWeights,)
    reveals: ClassVar[Mapping[type, float]] = {Energies: math.inf}
    percentile: Annotated[float, Interval(ge=0, le=100)]
    threshold: Share
    keep: Share
    suspects: Suspects
    effect: Effect
    apply: Literal["same", "next"]
    inference_augment: bool
    stage: StageNumber

    @property
    def available_from(self) -> int:
        return self.stage

    def init(self, clients: int, params: Params) -> EnergyState:
        nan = torch.full((clients,), torch.nan, dtype=torch.float64)
        return EnergyState(nan, nan)

    def _now(self, clock: Clock) -> bool:
        return (clock.stage, clock.stage_round) == (self.stage, 0)

    def wants_models(self, clock: Clock) -> Wants:
        """Before they are combined, in the round in which the weights are found and applied."""
        return "before" if self.apply == "same" and self._now(clock) else "no"

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        if not self._now(task.broadcast.clock):
            return Payload(), Payload()
        draws = [task.stream("energies", which) if self.inference_augment else None for which in (0, 1)]
        received, trained = network.received(task, draws[0]), network.logits(task.samples, draws[1])
        return Payload(Energies(energies(received), energies(trained))), Payload()

    def gathered(self, state: EnergyState, gathered: Gathered) -> EnergyState:
        """The shares and weights of the clients that have sent energies."""
        sent = {r.client: one for r in gathered.results if (one := r.reports.get(Energies)) is not None}
        if not sent:
            return state
        clients, found = list(sent), np.array(list(noisy_shares(sent, self.percentile, self.suspects).values()))
        samples = np.array([len(one.trained) for one in sent.values()], np.float64)
        value = weights(found, samples, threshold=self.threshold, keep=self.keep, effect=self.effect)
        shares, own = state.shares.clone(), state.weights.clone()
        shares[clients], own[clients] = torch.from_numpy(found), torch.from_numpy(value)
        return EnergyState(shares, own)

    def known(self, state: EnergyState) -> tuple[Any, ...]:
        return (NoiseAwareWeights(state.weights),)

    def caution(self, setting: Setting) -> str | None:
        """Warns that clients are never judged, or by the initial model, whose energies say nothing."""
        if not setting.lengths[self.stage - 1]:
            return (
                f"{setting.key} judges clients in stage {self.stage}, which has no rounds: all count by their samples"
            )
        if sum(setting.lengths[: self.stage - 1]) > 0:
            return None
        return (
            f"{setting.key} judges clients in the first round, by a model that has learned nothing; choose stages with "
            "training before, such as method/stages=fedln"
        )

    def findings(self, state: EnergyState, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """Clients with a share of noisy samples from the threshold on, once clients have been judged."""
        if bool(state.shares.isnan().all()):
            return ()
        return (NoisyClients(state.shares >= self.threshold, {"energy_share": state.shares}),)


# ------------------------------------------------------------------------------------------------- nearest neighbours


@stored("NearestLabels")
class NearestLabels:
    """Kept on the client: what its samples' neighbours are labelled."""

    labels: Tensor  # int64 [n]
    judged: Tensor  # int64 [n], the labels that the client held
    adopted: bool  # whether they take the place of the client's labels

    @property
    def disagreement(self) -> float:
        """The share of samples whose neighbours are labelled otherwise."""
        return float((self.labels != self.judged).double().mean())


@dataclass(frozen=True)
class FindNearest:
    """Job: the label of most of each sample's nearest neighbours on the client, by their pixels or numbers."""

    neighbours: PositiveCount
    threshold: float

    def __call__(self, network: Model, task: ClientTask) -> Opened:
        """Keep them on the client; report nothing."""
        stored, given = task.samples.read(), task.labels
        values = network.prepare(stored).cpu() if stored.dim() == 2 else stored.flatten(1)
        found = NearestLabels(
            nearest_labels(values.double(), given, self.neighbours, network.num_classes), given, adopted=False
        )
        adopted = found.disagreement >= self.threshold
        return Opened(task.client, Payload(), Payload(NearestLabels(found.labels, given, adopted)))


@dataclass(frozen=True)
class NearestNeighbours(Exchange):
    """Before the first round, every client finds the label of most of each sample's ``neighbours``, itself among them.

    Neighbours are near in Euclidean distance of stored pixels; of rows of numbers, in that of the network's inputs.
    Where at least a share ``threshold`` of the client's labels differ from those found, all are to be replaced by
    these, otherwise none.
    """

    keeps: ClassVar[tuple[type, ...]] = (NearestLabels,)
    neighbours: PositiveCount
    threshold: Annotated[float, Interval(ge=0, le=2)]

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        if setting.kind != "tokens":
            return None
        return "neighbours are found by distances of inputs, and the numbers of words have none: choose another method"

    def init(self, clients: int, params: Params) -> int:
        """The number of clients; the server learns nothing else."""
        return clients

    def before_round(self, state: int, clock: Clock) -> ClientJob[Opened] | None:
        return FindNearest(self.neighbours, self.threshold) if clock.round == 0 else None

    def findings(self, state: int, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """Each client's disagreement as its noise level; of clients that adopt their neighbours' labels, which."""
        kept = kept_by_client(clients, NearestLabels)
        if not kept:
            return ()
        levels = torch.full((state,), torch.nan, dtype=torch.float64)
        for client, one in kept.items():
            levels[client] = one.disagreement
        suspects = (
            SuspectedSamples(client, one.labels != one.judged, None, one.judged, one.labels)
            for client, one in kept.items()
            if one.adopted
        )
        return EstimatedNoise(levels), *suspects
