"""Label smoothing, also with a negative rate."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch.nn.functional as F
from annotated_types import Le
from torch import Tensor

from flnl.core.parts import LossTerm
from flnl.core.ranges import Count
from flnl.core.step import Step
from flnl.parts.losses.targets import cross_entropy


@dataclass(frozen=True)
class LabelSmoothing(LossTerm):
    """``(1−r) CE + r mean_c(−log p_c)`` per sample: the share r of each target is spread over all C classes.

    r > 0 is label smoothing (FLR, App. E.6: 0.1); r < 0 is negative label smoothing (Wei et al. 2022; FLR: −0.05),
    whose loss is unbounded below. Before round ``start`` r is 0.
    """

    fits_labels: ClassVar[bool] = True
    r: Annotated[float, Le(1)]
    start: Count

    def begins(self, lengths: Sequence[int]) -> int:
        return self.start if self.r else 0

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        r = self.r if step.broadcast.round >= self.start else 0.0
        spread = -F.log_softmax(step.logits, 1).mean(1)
        return (1 - r) * cross_entropy(step.logits, step.targets) + r * spread, state
