"""Symmetric cross-entropy."""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch.nn.functional as F
from annotated_types import Lt
from torch import Tensor

from flnl.core.parts import LossTerm
from flnl.core.ranges import NonNegative
from flnl.core.step import Step
from flnl.parts.losses.targets import cross_entropy, expected


@dataclass(frozen=True)
class SymmetricCrossEntropy(LossTerm):
    """``α CE + β RCE`` per sample (Wang et al. 2019); RCE is the cross-entropy with label and prediction exchanged.

    ``RCE = −Σ_c p_c log y_c = −A (1 − p_y)``, where A (``log_zero``) replaces log 0. The authors' program clamps labels
    at 1e-4, so A = ln 1e-4. After mixing, RCE is ``λ RCE_a + (1−λ) RCE_b``.
    """

    fits_labels: ClassVar[bool] = True
    alpha: NonNegative
    beta: NonNegative
    log_zero: Annotated[float, Lt(0)]

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        reverse = -self.log_zero * expected(1 - F.softmax(step.logits, 1), step.targets)
        return self.alpha * cross_entropy(step.logits, step.targets) + self.beta * reverse, state
