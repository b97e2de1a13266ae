"""Losses whose minimum symmetric noise does not move: mean absolute error, reverse cross-entropy, normalised losses.

A weighted sum of a normalised loss, which is active, and a passive one is an active-passive loss (Ma et al. 2020).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from annotated_types import Lt
from torch import Tensor

from flnl.core.parts import LossTerm, Setting
from flnl.core.ranges import NonNegative, PositiveShare
from flnl.core.step import Step
from flnl.parts.losses.targets import expected

LEAST_GRADIENT = 5e-3
"""Of a normalised loss at uniform predictions, beside cross-entropy's; below it the run says so (ours)."""


@dataclass(frozen=True)
class MeanAbsoluteError(LossTerm):
    """``w (1 - p_y)`` per sample (Ghosh et al. 2017), half of ``Σ_c |p_c - y_c|``.

    ``normalised`` divides it by K - 1, the sum over all labels; that is normalised reverse cross-entropy, too.
    """

    fits_labels: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True

    weight: NonNegative
    normalised: bool

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        losses = expected(1 - F.softmax(step.logits, 1), step.targets)
        return self.weight * (losses / (step.logits.shape[1] - 1) if self.normalised else losses), state


@dataclass(frozen=True)
class ReverseCrossEntropy(LossTerm):
    """``-w A (1 - p_y)`` per sample, the cross-entropy with label and prediction exchanged (Wang et al. 2019).

    A (``log_zero``) stands for log 0.
    """

    fits_labels: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True

    weight: NonNegative
    log_zero: Annotated[float, Lt(0)]

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return -self.weight * self.log_zero * expected(1 - F.softmax(step.logits, 1), step.targets), state


@dataclass(frozen=True)
class Focal(LossTerm):
    """``w (1 - p_y)^γ CE`` per sample (Lin et al. 2017).

    With ``detach``, the factor ``(1 - p)^γ`` is a constant for the gradient, as in the program of Ma et al.; otherwise
    1 - p counts as at least 1e-7, where the gradient would not be finite.
    """

    fits_labels: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True

    weight: NonNegative
    gamma: NonNegative
    detach: bool

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return self.weight * expected(_focal(step.logits, self.gamma, self.detach), step.targets), state


@dataclass(frozen=True)
class Normalised(LossTerm):
    """``w ℓ(p, y) / Σ_c ℓ(p, c)`` per sample, in [0, w] (Ma et al. 2020, Eq. 6).

    ℓ is cross-entropy (NCE), the focal loss (NFL; ``gamma`` and ``detach`` as in ``Focal``) or generalised
    cross-entropy (NGCE, with ``q``). At random weights its gradient is about K log K times smaller than
    cross-entropy's, which ``weight`` makes up for.
    """

    fits_labels: ClassVar[bool] = True
    rowwise: ClassVar[bool] = True

    loss: Literal["cross_entropy", "focal", "generalized_cross_entropy"]
    weight: NonNegative
    gamma: NonNegative
    detach: bool
    q: PositiveShare

    def caution(self, setting: Setting) -> str | None:
        """Warns of a weight at which an initial gradient is less than 0.005 of cross-entropy's."""
        classes = setting.classes or 1
        if self.loss == "generalized_cross_entropy" or self.weight >= LEAST_GRADIENT * classes * math.log(classes):
            return None
        return (
            f"{setting.key}.weight={self.weight:g} is small for {classes} classes: at first the gradient is "
            f"{self.weight / (classes * math.log(classes)):.2g} of cross-entropy's, and weight decay may outweigh it; "
            "Ma et al. have 10 on CIFAR-100"
        )

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """The loss [B]; it and its gradient are finite for any logits, since the sum is over two labels or more."""
        if self.loss == "focal":
            losses = _focal(step.logits, self.gamma, self.detach)
        else:
            logs = F.log_softmax(step.logits, 1)
            losses = -logs if self.loss == "cross_entropy" else -torch.expm1(self.q * logs)
        return self.weight * expected(losses / losses.sum(1, keepdim=True), step.targets), state


def _focal(logits: Tensor, gamma: float, detach: bool) -> Tensor:
    """``-(1 - p_c)^γ log p_c`` [B, K]."""
    logs = F.log_softmax(logits, 1)
    others = -torch.expm1(logs)
    factor = others.detach() ** gamma if detach else others.clamp_min(1e-7) ** gamma
    return -factor * logs
