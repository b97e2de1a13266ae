"""Generalised cross-entropy: plain, and truncated by each batch's predictions or by those of the received model."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import LossTerm
from flnl.core.ranges import Count, PositiveCount, PositiveShare
from flnl.core.step import Step
from flnl.parts.losses.targets import expected, of_labels


@dataclass(frozen=True)
class GeneralizedCrossEntropy(LossTerm):
    """``L_q(p_y) = (1 − p_y^q) / q`` per sample (Zhang and Sabuncu 2018, Eq. 6).

    It tends to cross-entropy for q → 0 and is 1 − p_y for q = 1. The truncated form (κ > 0) is ``L_q(p_y)`` if
    ``p_y > κ`` and the constant ``L_q(κ)`` otherwise, so labels that the network finds implausible give no gradient; p
    are the current batch's predictions. Before round ``start`` κ is 0, since at first every p_y may be below κ. After
    mixing, the loss is ``λ L(p_a) + (1−λ) L(p_b)``.
    """

    fits_labels: ClassVar[bool] = True
    q: PositiveShare
    kappa: Annotated[float, Interval(ge=0, lt=1)]
    start: Count

    def begins(self, lengths: Sequence[int]) -> int:
        return self.start if self.kappa else 0

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """The loss [B]; it and its gradient are finite for any p_y."""
        logs = F.log_softmax(step.logits, 1)
        losses = -torch.expm1(self.q * logs) / self.q
        if self.kappa > 0 and step.broadcast.round >= self.start:
            floor = math.log(self.kappa)
            losses = torch.where(logs > floor, losses, -math.expm1(self.q * floor) / self.q)
        return expected(losses, step.targets), state


@dataclass(frozen=True)
class TruncatedByVisit(LossTerm):
    """``L_q(p_y) = (1 − p_y^q) / q`` of some samples, the constant ``L_q(κ)`` of the others (Zhang and Sabuncu 2018).

    Those of the others have p_y ≤ κ under the model that the client received, in eval mode. So they are chosen once a
    visit, as the paper chooses them once in some epochs; ``GeneralizedCrossEntropy`` chooses by each batch's
    predictions. If fewer than ``least`` would remain, as before round ``start``, all do. After mixing, the loss is
    ``λ L_a + (1−λ) L_b``, each of its own sample.
    """

    fits_labels: ClassVar[bool] = True
    q: PositiveShare
    kappa: Annotated[float, Interval(gt=0, lt=1)]
    start: Count
    least: PositiveCount

    def begins(self, lengths: Sequence[int]) -> int:
        return self.start

    def begin(self, network: Model, task: ClientTask, state: Any) -> Tensor:
        """The samples that count in this visit, bool [n]."""
        kept = torch.ones(len(task.labels), dtype=torch.bool)
        if task.broadcast.round >= self.start:
            logs = F.log_softmax(network.received(task).double(), 1)
            above = of_labels(logs, task.labels.to(logs.device)).cpu() > math.log(self.kappa)
            kept = above if int(above.sum()) >= self.least else kept
        return onto(kept, network.device)

    def __call__(self, step: Step, state: Tensor) -> tuple[Tensor, Any]:
        """The loss [B]; it and its gradient are finite for any p_y."""
        losses = -torch.expm1(self.q * F.log_softmax(step.logits, 1)) / self.q
        constant = -math.expm1(self.q * math.log(self.kappa)) / self.q
        kept = state.index_select(0, step.positions)
        if step.mixing is None:
            return torch.where(kept, expected(losses, step.targets), constant), state
        partner = onto(step.mixing.partner, losses.device)
        one = torch.where(kept, of_labels(losses, step.labels), constant)
        other = of_labels(losses, step.labels.index_select(0, partner))
        other = torch.where(kept.index_select(0, partner), other, constant)
        return step.mixing.share * one + (1 - step.mixing.share) * other, state
