"""JointOpt's objective: soft labels, a prior on the mean prediction, and the entropy of predictions."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.messages import ClientTask, Fit
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import LossTerm, Setting
from flnl.core.ranges import Count, NonNegative, PositiveCount, StageNumber
from flnl.core.step import Step
from flnl.methods.joint_opt.labels import Incomplete, SoftLabels
from flnl.numerics.losses import log_mean_prediction, weighted_mean
from flnl.parts.losses.targets import expected, mixed_pair

Prior = Literal["uniform", "labels"]


def classification_and_entropy(logits: Tensor, targets: Tensor, beta: float) -> Tensor:
    """``-Σ_c ŷ_c log p_c + β H(p)`` [B], with p the softmax of the logits [B, K] and soft labels ŷ [B, K].

    The first term is KL(ŷ ‖ p) up to the entropy of ŷ, which has no gradient (Tanaka et al. 2018, Eqs. 6 and 9).
    """
    logs = F.log_softmax(logits, 1)
    losses = expected(-logs, targets.to(logs.dtype))
    return losses if beta == 0 else losses - beta * (logs.exp() * logs).sum(1)


def prior_loss(logits: Tensor, prior: Tensor, weight: Tensor | None = None) -> Tensor:
    """``-Σ_c π_c log p̄_c``, a scalar: p̄ is the mean prediction of the batch, π [K] the prior.

    This is KL(π ‖ p̄) up to the entropy of π, which has no gradient (Tanaka et al. 2018, Eq. 8). ``weight`` [B] is each
    row's weight in p̄; 0 if all are 0.
    """
    loss = -(prior * log_mean_prediction(logits, weight)).sum()
    return loss if weight is None else loss * (weight.sum() > 0)


@dataclass(frozen=True)
class Visit:
    """The term's state during one visit."""

    labels: SoftLabels
    prior: Tensor  # float [K], sums to 1
    updates: bool  # whether labels are updated in this round


@dataclass(frozen=True)
class JointOpt(LossTerm):
    """``L_c + α L_p + β L_e`` on soft labels that become the mean of past predictions (Tanaka et al., CVPR 2018).

    L_c is the cross-entropy of the soft labels ŷ, L_p the one of the prior with the batch's mean prediction, L_e the
    mean entropy of predictions. Each sample keeps its last ``window`` predictions, those of its training batches. In
    rounds from ``update_from`` on, a sample's label becomes their mean each time it was trained on, and is used from
    the next epoch on; null: labels stay as they are, and nothing is recorded. Rounds count from the start of stage
    ``first_stage``. ``incomplete``: whether a label waits until its history is full, or is the mean of what is there.

    Soft labels start from the labels that the client holds; one that another part corrects starts again. With mixed
    batches, ŷ is mixed like the inputs and the predictions are those on the unmixed inputs, in eval mode.
    """

    fits_labels: ClassVar[bool] = True
    alpha: NonNegative
    beta: NonNegative
    prior: Prior
    update_from: Count | None
    window: PositiveCount
    incomplete: Incomplete
    first_stage: StageNumber

    def begin(self, network: Model, task: ClientTask, state: SoftLabels | None) -> Visit:
        """The soft labels as the last visit left them; at the first visit, those that the client holds."""
        like = next(p for p in task.broadcast.params.values() if p.is_floating_point())
        held = onto(task.labels, like.device)
        labels = (
            SoftLabels.of(held, network.num_classes, self.window, like.dtype)
            if state is None
            else state.following(held)
        )
        counts = torch.ones(network.num_classes)
        if self.prior == "labels":
            counts = torch.bincount(task.labels, minlength=network.num_classes)
        prior = onto(counts.to(like.dtype) / counts.sum().clamp(min=1), like)
        updates = self.update_from is not None and task.broadcast.clock.since(self.first_stage) >= self.update_from
        return Visit(labels, prior, updates)

    def __call__(self, step: Step, state: Visit) -> tuple[Tensor, Visit]:
        """The loss, [B] without a prior, otherwise a scalar; the state with this batch's predictions."""
        targets = state.labels.values[step.positions]
        if step.mixing is not None:
            partner = onto(step.mixing.partner, targets.device)
            targets = mixed_pair(targets, targets[partner], step.mixing.share)
        loss = classification_and_entropy(step.logits, targets, self.beta)
        if self.alpha:
            prior = prior_loss(step.logits, state.prior, step.weight)
            loss = weighted_mean(loss, step.weight) + self.alpha * prior
        return loss, state if self.update_from is None else self._recorded(step, state)

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Visit) -> SoftLabels | None:
        """The soft labels; None if they stay as they are."""
        return None if self.update_from is None else state.labels

    def caution(self, setting: Setting) -> str | None:
        rounds = sum(setting.lengths[self.first_stage - 1 :])
        if self.update_from is None or rounds == 0 or self.update_from < rounds:
            return None
        return (
            f"{setting.key}.update_from={self.update_from}: {rounds} rounds follow from the start of stage "
            f"{self.first_stage}, so labels are never updated; raise their number or lower this value"
        )

    def _recorded(self, step: Step, state: Visit) -> Visit:
        predictions = step.unmixed_logits.detach().softmax(1, dtype=state.labels.history.dtype)
        labels = state.labels.recorded(step.positions, predictions)
        if state.updates:
            labels = labels.updated(step.positions, self.incomplete)
        return Visit(labels, state.prior, state.updates)
