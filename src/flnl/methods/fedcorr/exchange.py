"""FedCorr's exchange: a scalar of dimensionality up, the server's verdict on the client down.

The server never sees a sample: it adds up one number a client and pass, and splits the clients in two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flnl.core.findings import EstimatedNoise, Finding, NoisyClients
from flnl.core.messages import ClientState, ClientTask, Fit, Gathered
from flnl.core.model import Model
from flnl.core.parts import Exchange
from flnl.core.payload import Payload
from flnl.core.ranges import PositiveCount
from flnl.core.stored import stored
from flnl.methods.fedcorr.lid import lid_score
from flnl.numerics.losses import sample_losses
from flnl.numerics.mixture import two_gaussians


@dataclass(frozen=True)
class LidScore:
    """Sent up after training: the mean LID of the client's predictions."""

    value: float


@dataclass(frozen=True)
class NoiseLevel:
    """Sent up after estimation: μ̂_k, the share of its samples that the client takes for wrongly labelled."""

    value: float


@dataclass(frozen=True)
class NoiseDirective:
    """Sent down: whether the server takes the client for noisy, and μ̂_k as last reported."""

    noisy: bool
    level: float


@stored("SampleLosses")
@dataclass(frozen=True)
class SampleLosses:
    """Kept on the client: losses float64 [n] under the model it had just trained."""

    values: Tensor


@dataclass(frozen=True)
class NoiseLevels:
    """Known on the server: μ̂_k, and which clients the last split called noisy."""

    level: Tensor  # float64 [N]
    noisy: Tensor  # bool [N]


@stored("LidState")
@dataclass(frozen=True)
class LidState:
    """The server's record. ``latest`` and ``cumulative`` are float64 [N]."""

    latest: Tensor
    cumulative: Tensor
    level: Tensor
    noisy: Tensor
    visits: Tensor  # int64 [N], how often the client has reported
    mixture: tuple[float, ...] = ()  # means, variances and weights of the last fit, lower component first


@dataclass(frozen=True)
class Lid(Exchange):
    """LID scores accumulated over passes, split by a mixture of two Gaussians (FedCorr, Sec. 3.2 and Algorithm 1).

    The component with the larger mean is the noisy one. Losses are those under the just-trained local model, kept
    on the client; only the score leaves it. A client that has never reported is not part of the split; one whose
    training was left out in some pass is compared by its mean over the others.
    """

    sends: ClassVar[tuple[type, ...]] = (NoiseDirective,)
    keeps: ClassVar[tuple[type, ...]] = (SampleLosses,)
    knows: ClassVar[tuple[type, ...]] = (NoiseLevels,)
    k: PositiveCount
    guard: bool
    loss: Literal["ce", "ce_of_softmax"]
    inference_augment: bool

    def init(self, clients: int) -> LidState:
        """Nobody is noisy before the first split."""
        zero = torch.zeros(clients, dtype=torch.float64)
        none = torch.zeros(clients, dtype=torch.bool)
        return LidState(zero, zero, zero, none, torch.zeros(clients, dtype=torch.int64))

    def caution(self, sizes: Mapping[int, int]) -> str | None:
        """Where k neighbours are all that a client has, its LID no longer tells noise; it may even be reversed."""
        smallest = min(sizes, key=lambda client: sizes[client])
        if sizes[smallest] > self.k:
            return None
        few = sum(n <= self.k for n in sizes.values())
        return (
            f"method.k_lid={self.k} neighbours are more than {few} of {len(sizes)} clients have (client {smallest} "
            f"holds {sizes[smallest]} samples): LID says little of their labels; lower it, or take fewer clients"
        )

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """The score, and the losses that stay."""
        logits = network.logits(task.samples, task.stream("lid augmentation") if self.inference_augment else None)
        losses = sample_losses(logits, task.labels, of_softmax=self.loss == "ce_of_softmax")
        score = lid_score(torch.softmax(logits.double(), dim=1), self.k, guard=self.guard)
        return Payload(LidScore(score)), Payload(SampleLosses(losses))

    def receive(self, state: LidState, reports: Mapping[int, Payload], seed: int) -> LidState:
        """Scores are added up, levels replace what was known."""
        latest, cumulative, level, visits = (
            tensor.clone() for tensor in (state.latest, state.cumulative, state.level, state.visits)
        )
        for client, report in reports.items():
            if (score := report.get(LidScore)) is not None:
                latest[client] = score.value
                cumulative[client] += score.value
                visits[client] += 1
            if (found := report.get(NoiseLevel)) is not None:
                level[client] = found.value
        return replace(state, latest=latest, cumulative=cumulative, level=level, visits=visits)

    def after_round(self, state: LidState, gathered: Gathered) -> LidState:
        """At the end of a pass or stage the clients are split, before they correct labels."""
        return self.split(state) if gathered.corrects else state

    def split(self, state: LidState) -> LidState:
        """Split the clients; those on the clean side have level 0 (Algorithm 1), the others report theirs next."""
        seen = state.visits > 0
        missed = state.visits.max() / state.visits[seen]  # exactly 1 for everybody, unless somebody was left out
        mixture = two_gaussians((state.cumulative[seen] * missed).numpy())
        noisy = torch.zeros_like(state.noisy)
        noisy[seen] = torch.from_numpy(mixture.upper)
        level = torch.where(noisy, state.level, 0.0)
        return replace(state, noisy=noisy, level=level, mixture=(*mixture.means, *mixture.variances, *mixture.weights))

    def send(self, state: LidState, client: int) -> tuple[Any, ...]:
        """The verdict on this client."""
        return (NoiseDirective(bool(state.noisy[client]), float(state.level[client])),)

    def known(self, state: LidState) -> tuple[Any, ...]:
        """Levels and verdicts."""
        return (NoiseLevels(state.level, state.noisy),)

    def findings(self, state: LidState, clients: Mapping[int, ClientState]) -> tuple[Finding, ...]:
        """The last split with the scores that it was made from, and the levels; nothing before the first."""
        if not state.mixture:
            return ()
        scores = {"lid": state.latest, "cumulative_lid": state.cumulative}
        return NoisyClients(state.noisy, scores, state.mixture), EstimatedNoise(state.level)
