"""Entropy minimisation: rewards confident predictions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from flnl.core.parts import LossTerm
from flnl.core.ranges import Count, NonNegative
from flnl.core.step import Step


@dataclass(frozen=True)
class EntropyMinimization(LossTerm):
    """``λ H(p)`` per sample, ``H(p) = −Σ_c p_c log p_c`` (Grandvalet and Bengio 2004; FLR, App. E.6: λ = 4).

    Use it together with a term that learns from labels. Before round ``start`` it is zero: with a large λ and a random
    initial model, all predictions may collapse to one class.
    """

    weight: NonNegative
    start: Count

    def begins(self, lengths: Sequence[int]) -> int:
        return self.start

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        weight = self.weight if step.broadcast.round >= self.start else 0.0
        logs = F.log_softmax(step.logits, 1)
        return -weight * (logs.exp() * logs).sum(1), state
