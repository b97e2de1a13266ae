"""The Jensen-Shannon divergence as a loss."""

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from annotated_types import Interval
from torch import Tensor

from flnl.core.parts import LossTerm
from flnl.core.step import Step


@dataclass(frozen=True)
class JensenShannon(LossTerm):
    """``[π KL(t ‖ m) + (1-π) KL(p ‖ m)] / Z`` a sample, with ``m = π t + (1-π) p`` and ``Z = -(1-π) ln(1-π)``.

    t is the target, p the softmax of the logits (Englesson and Azizpour, NeurIPS 2021). Near 0, π gives cross-entropy;
    near 1, a multiple of the mean absolute error, which wrong labels hurt less.
    """

    fits_labels: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True
    weight: Annotated[float, Interval(gt=0, lt=1)]  # π

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """The loss [B]."""
        log_share = step.logits.log_softmax(1)  # the logarithm of a softmax has no finite gradient once a share is 0
        target = step.targets  # not step.labels: after mixup, a row's target is a mixture of two labels
        if not target.is_floating_point():
            target = F.one_hot(target, log_share.shape[1]).to(log_share.dtype)
        log_middle = torch.logaddexp((self.weight * target).log(), log_share + math.log(1 - self.weight))
        from_target = (torch.xlogy(target, target) - target * log_middle).sum(1)
        from_share = (log_share.exp() * (log_share - log_middle)).sum(1)
        scale = -(1 - self.weight) * math.log(1 - self.weight)
        return (self.weight * from_target + (1 - self.weight) * from_share) / scale, state
