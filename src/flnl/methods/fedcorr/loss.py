"""FedCorr's adaptive proximal term."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from flnl.core.parts import LossTerm
from flnl.core.ranges import NonNegative
from flnl.core.step import Step
from flnl.methods.fedcorr.exchange import NoiseDirective
from flnl.numerics.distance import distance, squared_distance


@dataclass(frozen=True)
class AdaptiveProximal(LossTerm):
    """``β μ̂_k ‖w − w_t‖²`` with μ̂_k the client's estimated noise level (FedCorr, Eq. 5).

    ``form="norm"`` is that of the released code: the plain norm, and zero on the first batch of an epoch. The gradients
    of both forms agree at ``‖w − w_t‖ = 0.5``. The squared form is stable up to about ``2 lr β μ̂ < 1``.
    """

    reads: ClassVar[tuple[type, ...]] = (NoiseDirective,)
    beta: NonNegative
    form: Literal["squared", "norm"]

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        strength = self.beta * step.broadcast.extras.one(NoiseDirective).level
        if self.form == "squared":
            return strength * squared_distance(step.params, step.broadcast.params), state
        if step.number == 0:
            strength = 0.0
        return strength * distance(step.params, step.broadcast.params), state
