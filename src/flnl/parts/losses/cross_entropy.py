"""Cross-entropy."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch.nn.functional as F
from torch import Tensor

from flnl.core.parts import LossTerm
from flnl.core.step import Step


@dataclass(frozen=True)
class CrossEntropy(LossTerm):
    """``-Σ_j y_j log p_j`` per sample, with p the softmax of the logits.

    Targets are labels, or rows that sum to 1 if the batch was mixed: for mixup's soft labels the loss is
    ``λ CE(p, a) + (1-λ) CE(p, b)``.
    """

    fits_labels: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return F.cross_entropy(step.logits, step.targets, reduction="none"), state
