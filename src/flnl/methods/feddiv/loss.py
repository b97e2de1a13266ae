"""FedDiv's prior on a client's mean prediction."""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from flnl.core.parts import LossTerm
from flnl.core.ranges import NonNegative
from flnl.core.step import Step
from flnl.numerics.losses import log_mean_prediction


def divergence_from_uniform(logits: Tensor, weight: Tensor | None = None) -> Tensor:
    """``KL(u ‖ p̄) = -log K - (1/K) Σ_c log p̄_c``, a scalar: u is uniform, p̄ the mean prediction of a batch.

    Logits are [B, K]; ``weight`` [B] is each row's weight in the mean, None for equal weights; 0 if all are 0. FedDiv,
    Eq. 14; Tanaka et al. 2018.
    """
    divergence = -log_mean_prediction(logits, weight).mean() - math.log(logits.shape[1])
    return divergence if weight is None else divergence * (weight.sum() > 0)


@dataclass(frozen=True)
class Prior(LossTerm):
    """``η KL(u ‖ p̄)`` with p̄ the mean prediction of the (mixed) batch (FedDiv, Eqs. 14 and 15)."""

    eta: NonNegative

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return self.eta * divergence_from_uniform(step.logits, step.weight), state
