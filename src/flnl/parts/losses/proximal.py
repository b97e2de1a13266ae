"""The proximal term, which keeps the client's parameters close to the received ones."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from flnl.core.parts import LossTerm
from flnl.core.ranges import NonNegative
from flnl.core.step import Step
from flnl.numerics.distance import squared_distance


@dataclass(frozen=True)
class Proximal(LossTerm):
    """``(μ/2) ‖w − w_t‖²`` with w_t the received model (FedProx, Li et al. 2020, Eq. 2); parameters only."""

    mu: NonNegative

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """The penalty, a scalar."""
        return self.mu / 2 * squared_distance(step.params, step.broadcast.params), state
