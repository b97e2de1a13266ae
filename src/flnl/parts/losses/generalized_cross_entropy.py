"""Generalised cross-entropy, plain and truncated."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor

from flnl.core.parts import LossTerm
from flnl.core.ranges import Count, PositiveShare
from flnl.core.step import Step
from flnl.parts.losses.targets import expected


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
