"""FedCorr's exchange: clients send their LID score, the server sends back whether it considers the client noisy.

The server never sees a sample: it adds up one number per client and pass, and splits the clients in two.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from flnl.core.findings import EstimatedNoise, Finding, NoisyClients
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, Gathered
from flnl.core.model import Model
from flnl.core.parts import Exchange, Setting
from flnl.core.payload import Params, Payload
from flnl.core.ranges import Neutral, Positive, PositiveCount, Share
from flnl.core.stored import stored
from flnl.methods.fedcorr.lid import lid_score
from flnl.numerics.losses import sample_losses
from flnl.numerics.mixture import TOLERANCE, two_gaussians


@stored("LidScore")
class LidScore:
    """Sent to the server after training: the mean LID of the client's predictions."""

    value: float


@stored("NoiseLevel")
class NoiseLevel:
    """Sent to the server after estimation: μ̂_k, the share of its samples that the client considers wrongly labelled."""

    value: Share


@stored("NoiseDirective")
class NoiseDirective:
    """Sent to the client: whether the server considers it noisy, and its last reported μ̂_k."""

    noisy: bool
    level: float


@stored("SampleLosses")
class SampleLosses:
    """Kept on the client: losses float64 [n] under its model after training."""

    values: Tensor


@dataclass(frozen=True)
class NoiseLevels:
    """Known on the server: μ̂_k, and the noisy clients of the last split."""

    level: Tensor  # float64 [N]
    noisy: Tensor  # bool [N]


@stored("LidState")
class LidState:
    """The server's state."""

    latest: Tensor  # float64 [N], last LID score
    cumulative: Tensor  # float64 [N], sum of LID scores
    level: Tensor  # float64 [N], μ̂
    noisy: Tensor  # bool [N]
    visits: Tensor  # int64 [N], number of reports
    mixture: tuple[float, ...] = ()  # means, variances and weights of the last fit, lower component first


@dataclass(frozen=True)
class Lid(Exchange):
    """LID scores accumulated over passes, split by a mixture of two Gaussians (FedCorr, Sec. 3.2 and Algorithm 1).

    The component with the larger mean is the noisy one. Losses under the client's trained model stay on the client;
    only the score is sent. A client that has never reported is not part of the split; for one that was left out of some
    passes, the sum of its scores is scaled up accordingly.
    """

    sends: ClassVar[tuple[type, ...]] = (NoiseDirective,)
    reports: ClassVar[tuple[type, ...]] = (LidScore,)
    keeps: ClassVar[tuple[type, ...]] = (SampleLosses,)
    knows: ClassVar[tuple[type, ...]] = (NoiseLevels,)
    k: PositiveCount
    guard: bool
    loss: Literal["ce", "ce_of_softmax"]
    inference_augment: bool
    gmm_tol: Annotated[Positive, Neutral(TOLERANCE)]

    def init(self, clients: int, params: Params) -> LidState:
        zero = torch.zeros(clients, dtype=torch.float64)
        none = torch.zeros(clients, dtype=torch.bool)
        return LidState(zero, zero, zero, none, torch.zeros(clients, dtype=torch.int64))

    def caution(self, setting: Setting) -> str | None:
        """Warns of clients with at most k samples: their LID does not indicate noise, and may even be reversed."""
        sizes = setting.sizes
        smallest = min(sizes, key=lambda client: sizes[client])
        if sizes[smallest] > self.k:
            return None
        few = sum(n <= self.k for n in sizes.values())
        return (
            f"{setting.key}.k={self.k} neighbours are more than {few} of {len(sizes)} clients have (client {smallest} "
            f"holds {sizes[smallest]} samples): LID says little about their labels; lower it, or use fewer clients"
        )

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """Report the LID score; keep the losses. Of a model whose logits overflow, neither: its score would be 0."""
        logits = network.logits(task.samples, task.stream("lid augmentation") if self.inference_augment else None)
        if not torch.isfinite(logits).all():
            return Payload(), Payload()
        losses = sample_losses(logits, task.labels, of_softmax=self.loss == "ce_of_softmax")
        score = lid_score(torch.softmax(logits.double(), dim=1), self.k, guard=self.guard)
        return Payload(LidScore(score)), Payload(SampleLosses(losses))

    def receive(self, state: LidState, reports: Mapping[int, Payload], seed: int) -> LidState:
        latest, cumulative, level, visits = (
            tensor.clone() for tensor in (state.latest, state.cumulative, state.level, state.visits)
        )
        for client, report in reports.items():
            if (score := report.get(LidScore)) is not None:
                latest[client] = score.value
                cumulative[client] += score.value
                visits[client] += 1
            if (reported := report.get(NoiseLevel)) is not None:
                level[client] = reported.value
        return replace(state, latest=latest, cumulative=cumulative, level=level, visits=visits)

    def gathered(self, state: LidState, gathered: Gathered) -> LidState:
        """Split the clients at the end of a pass or stage, before they correct labels."""
        return self.split(state) if gathered.corrects else state

    def split(self, state: LidState) -> LidState:
        """Split the clients; clean ones get level 0 (Algorithm 1), noisy ones report theirs next."""
        seen = state.visits > 0
        if not seen.any():
            return state
        missed = state.visits.max() / state.visits[seen]  # exactly 1 for all clients, unless some were left out
        mixture = two_gaussians((state.cumulative[seen] * missed).numpy(), self.gmm_tol)
        noisy = torch.zeros_like(state.noisy)
        noisy[seen] = torch.from_numpy(mixture.upper)
        level = torch.where(noisy, state.level, 0.0)
        return replace(state, noisy=noisy, level=level, mixture=(*mixture.means, *mixture.variances, *mixture.weights))

    def send(self, state: LidState, client: int, clock: Clock) -> tuple[Any, ...]:
        return (NoiseDirective(bool(state.noisy[client]), float(state.level[client])),)

    def known(self, state: LidState) -> tuple[Any, ...]:
        return (NoiseLevels(state.level, state.noisy),)

    def own(self, state: LidState, client: int) -> LidState:
        """Whether the client is noisy, and that clients were split."""
        noisy = torch.zeros_like(state.noisy)
        noisy[client] = state.noisy[client]
        return replace(self.init(len(noisy), {}), noisy=noisy, mixture=state.mixture)

    def findings(self, state: LidState, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """The last split with its scores, and the noise levels; nothing before the first split."""
        if not state.mixture:
            return ()
        scores = {"lid": state.latest, "cumulative_lid": state.cumulative}
        return NoisyClients(state.noisy, scores, state.mixture), EstimatedNoise(state.level)
