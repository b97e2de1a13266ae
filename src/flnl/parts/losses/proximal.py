"""The proximal term, which keeps the client's parameters close to the received ones."""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from torch import Tensor

from flnl.core.parts import LossTerm
from flnl.core.ranges import Neutral, NonNegative
from flnl.core.step import Step
from flnl.numerics.distance import distance, squared_distance


@dataclass(frozen=True)
class Proximal(LossTerm):
    """``(μ/2) ‖w − w_t‖²`` with w_t the received model (FedProx, Li et al. 2020, Eq. 2); parameters only.

    ``form="norm"`` is ``μ ‖w − w_t‖``, as in the code released with FedCorr, which several papers' FedProx rows were
    probably made with: a pull of the same strength at any distance, with gradient zero at w = w_t.
    """

    mu: NonNegative
    form: Annotated[Literal["squared_half", "norm"], Neutral("squared_half")]

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        received = step.broadcast.params
        if self.form == "norm":
            return self.mu * distance(step.params, received), state
        return self.mu / 2 * squared_distance(step.params, received), state
