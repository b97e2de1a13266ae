"""How a network's losses divide a client's samples into those with right labels, and the rest."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

import torch
from torch import Tensor

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.ranges import Positive, PositiveCount, Share
from flnl.core.step import FIRST, SECOND
from flnl.core.stored import stored
from flnl.numerics.mixture import LossMixture, scaled_losses

NETWORKS = (FIRST, SECOND)
"""The order of the networks in tensors."""
FEWEST = 0.1
"""Share of the samples that are taken for clean if none is by its probability, those of smallest loss."""


@stored("Judgement")
class Judgement:
    """Kept on the client: what two networks make of a client's n samples; the networks in the order first, second."""

    probability: Tensor  # float64 [2, n], of a right label
    losses: Tensor  # float64 [h, 2, n], the last h fits' losses, scaled to [0, 1]; this one's at the end
    labels: Tensor | None  # int64 [n], the labels that were judged; None for the given labels

    def division(self, judge: int, threshold: Share) -> tuple[Tensor, Tensor]:
        """Positions of the samples that network ``judge`` takes for clean, and of the others, int64 each.

        Clean are those whose probability is above ``threshold``; if there are none, the ⌈n / 10⌉ of smallest loss.
        """
        clean = self.probability[judge] > threshold
        if not bool(clean.any()):
            order = self.losses[:, judge].mean(0).argsort(stable=True)
            clean[order[: ceil(FEWEST * len(order))]] = True
        return clean.nonzero()[:, 0], (~clean).nonzero()[:, 0]


@dataclass(frozen=True)
class Fitting:
    """How samples are judged: by a mixture of two Gaussians of each network's losses (Li et al. 2020, Sec. 3.1).

    Losses are scaled to [0, 1], and averaged over ``history`` fits: the one at hand, and those before it at the starts
    of the client's visits, this visit's among them where every epoch has a fit.
    """

    tolerance: Positive  # gain of the mean log-likelihood at which EM ends
    min_variance: Positive  # added to variances, in units of the scaled losses squared
    iterations: PositiveCount  # of EM, at most
    history: PositiveCount

    def by_received(self, network: Model, task: ClientTask, before: Judgement | None) -> Judgement:
        """The judgement by the networks that the client received; ``before`` is its last one."""
        return self._judged([network.received(task, output=name) for name in NETWORKS], task, before)

    def by_trained(self, network: Model, task: ClientTask, before: Judgement | None) -> Judgement:
        """The judgement by the networks as they are loaded; ``before`` is its last one."""
        return self._judged([network.logits(task.samples, output=name) for name in NETWORKS], task, before)

    def _judged(self, logits: Sequence[Tensor], task: ClientTask, before: Judgement | None) -> Judgement:
        mixture = LossMixture(self.tolerance, self.min_variance, self.iterations)
        losses = torch.stack([torch.from_numpy(scaled_losses(z, task.labels)) for z in logits])[None]
        if before is not None:
            losses = torch.cat([before.losses, losses])[-self.history :]
        right = [torch.from_numpy(mixture.right(mean.numpy())) for mean in losses.mean(0)]
        return Judgement(torch.stack(right), losses, task.state.labels)
