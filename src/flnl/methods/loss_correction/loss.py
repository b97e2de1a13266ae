"""Losses corrected by a transition matrix T [K, K], from the true class (row) to the given label (column)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch.nn.functional as F
from torch import Tensor

from flnl.core.onto import onto
from flnl.core.parts import LossTerm
from flnl.core.step import Step
from flnl.methods.loss_correction.transition import SMALLEST, TransitionMatrix
from flnl.parts.losses.forward_correction import forward_loss
from flnl.parts.losses.targets import cross_entropy, expected

Correction = Literal["forward", "reweight"]

LARGEST = 10.0
"""The largest weight of a sample under reweighting."""


def reweighted_loss(logits: Tensor, targets: Tensor, matrix: Tensor, *, constant: bool) -> Tensor:
    """``β_y CE_y`` [B] with ``β_y = p_y / (Tᵀ p)_y``, the importance of the label (Liu and Tao 2016).

    β has no gradient if it is ``constant``. The denominator is at least 1e-6, and β at most 10.
    """
    logs = F.log_softmax(logits, 1)
    probabilities = logs.exp()
    ratio = probabilities / (probabilities @ matrix.to(logs.dtype)).clamp_min(SMALLEST)
    beta = ratio.clamp(0.0, LARGEST)
    return expected(-(beta.detach() if constant else beta) * logs, targets)


@dataclass(frozen=True)
class LossCorrection(LossTerm):
    """The loss corrected by the client's estimated T; cross-entropy as long as the client has no estimate.

    ``forward`` is ``-log (Tᵀ p)_y`` (LC; Patrini et al. 2017, Theorem 2), ``reweight`` is ``β CE`` with the constant
    importance β (the second stage of T-revision, Xia et al. 2019). After mixing, the loss is ``λ ℓ_a + (1-λ) ℓ_b``.
    """

    reads: ClassVar[tuple[type, ...]] = (TransitionMatrix,)
    fits_labels: ClassVar[bool] = True
    form: Correction

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        estimate = step.kept.get(TransitionMatrix)
        if estimate is None:
            return cross_entropy(step.logits, step.targets), state
        matrix = onto(estimate.values, step.logits.device)
        if self.form == "forward":
            return forward_loss(step.logits, step.targets, matrix), state
        return reweighted_loss(step.logits, step.targets, matrix, constant=True), state
