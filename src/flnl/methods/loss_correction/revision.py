"""T-revision: the client learns a slack Δ of its transition matrix together with the network."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flnl.core.messages import ClientTask, Fit
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import LossTerm
from flnl.core.ranges import NonNegative
from flnl.core.step import Step
from flnl.methods.loss_correction.loss import Correction, reweighted_loss
from flnl.methods.loss_correction.transition import SMALLEST, Slack, TransitionMatrix, revised
from flnl.numerics.losses import weighted_mean
from flnl.numerics.roots import square_root
from flnl.parts.losses.forward_correction import forward_loss
from flnl.parts.losses.targets import cross_entropy

BETAS, EPSILON = (0.9, 0.999), 1e-8


@dataclass(frozen=True)
class Learning:
    """The term's state during one visit: Δ, and Adam's moments of its gradient."""

    slack: Tensor  # [K, K]
    mean: Tensor  # [K, K]
    square: Tensor  # [K, K]
    steps: Tensor  # scalar

    def stepped(self, gradient: Tensor, lr: float, weight_decay: float) -> "Learning":
        """After one step of Adam (Kingma and Ba 2015), with weight decay as a part of the gradient."""
        gradient = gradient + weight_decay * self.slack
        steps = self.steps + 1
        mean = BETAS[0] * self.mean + (1 - BETAS[0]) * gradient
        square = BETAS[1] * self.square + (1 - BETAS[1]) * gradient.square()
        scale = square_root(square / (1 - BETAS[1] ** steps)) + EPSILON
        return Learning(self.slack - lr * (mean / (1 - BETAS[0] ** steps)) / scale, mean, square, steps)


@dataclass(frozen=True)
class Revision(LossTerm):
    """The loss corrected by T + Δ, with Δ learned by Adam at ``lr`` from the same batches (Xia et al. 2019).

    ``forward`` is ``-log (T'ᵀ p)_y`` with T' = T + Δ, its entries at least 1e-6 and its rows divided by their sums; Δ
    does not fall to where the bound acts, nor below 0 where T is smaller than the bound. ``reweight`` is ``β CE`` with
    ``β = p_y / ((T + Δ)ᵀ p)_y``, without bounds on T + Δ; gradients flow through β to the network and to Δ. Δ starts at
    0, belongs to the client, and is never sent. As long as the client has no estimate of T, the loss is cross-entropy.
    """

    reads: ClassVar[tuple[type, ...]] = (TransitionMatrix,)
    fits_labels: ClassVar[bool] = True
    form: Correction
    lr: NonNegative
    weight_decay: NonNegative

    def begin(self, network: Model, task: ClientTask, state: Slack | None) -> Learning:
        """Δ as the last visit left it; so are its moments if optimisers go on, otherwise they start from zero."""
        zero = torch.zeros(network.num_classes, network.num_classes, dtype=network.dtype, device=network.device)
        slack, moments = zero if state is None else onto(state.values, zero), (zero, zero, zero[0, 0])
        if state is not None and state.moments is not None and task.state.momentum is not None:
            mean, square, steps = (onto(moment, zero) for moment in state.moments)
            moments = mean, square, steps
        return Learning(slack, *moments)

    def __call__(self, step: Step, state: Learning) -> tuple[Tensor, Learning]:
        """The loss [B]; the state after a step of Δ on this batch."""
        estimate = step.kept.get(TransitionMatrix)
        if estimate is None:
            return cross_entropy(step.logits, step.targets), state
        matrix, logits = onto(estimate.values, state.slack), step.logits.detach()

        def mean(slack: Tensor) -> Tensor:
            return weighted_mean(self._losses(logits, step.targets, matrix, slack), step.weight)

        after = state.stepped(torch.func.grad(mean)(state.slack), self.lr, self.weight_decay)
        if self.form == "forward":
            lowest = (SMALLEST - matrix).clamp_max(0)
            after = Learning(torch.maximum(after.slack, lowest), after.mean, after.square, after.steps)
        return self._losses(step.logits, step.targets, matrix, state.slack), after

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Learning) -> Any:
        """Δ, once the client has an estimate of T; with its moments if optimisers go on."""
        if task.state.extras.get(TransitionMatrix) is None:
            return None
        moments = (state.mean.cpu(), state.square.cpu(), state.steps.cpu())
        return Slack(state.slack.cpu(), None if fit.momentum is None else moments)

    def _losses(self, logits: Tensor, targets: Tensor, matrix: Tensor, slack: Tensor) -> Tensor:
        if self.form == "forward":
            return forward_loss(logits, targets, revised(matrix, slack))
        return reweighted_loss(logits, targets, matrix + slack, constant=False)
