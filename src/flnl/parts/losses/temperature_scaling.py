"""Temperature scaling during training."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from torch import Tensor

from flnl.core.parts import LossTerm
from flnl.core.ranges import Positive
from flnl.core.step import Step
from flnl.parts.losses.targets import cross_entropy


@dataclass(frozen=True)
class TemperatureScaling(LossTerm):
    """The cross-entropy of ``softmax(z / τ)`` (Guo et al. 2017; FLR, App. E.6: τ = 4).

    ``form=multiply`` uses the temperature as a factor, ``softmax(τ z)``. Predictions use ``softmax(z)`` in both cases.
    """

    fits_labels: ClassVar[bool] = True
    temperature: Positive
    form: Literal["divide", "multiply"]

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        scaled = step.logits / self.temperature if self.form == "divide" else step.logits * self.temperature
        return cross_entropy(scaled, step.targets), state
