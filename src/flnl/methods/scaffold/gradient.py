"""SCAFFOLD's gradient transform: gradients without what drives only this client."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from flnl.core.parts import GradientTransform
from flnl.core.step import Step
from flnl.methods.scaffold.exchange import Correcting, Drift


@dataclass(frozen=True)
class DriftCorrection(Correcting, GradientTransform):
    """``g − c_k + c`` at every step (SCAFFOLD, Karimireddy et al. 2020, Algorithm 1), of parameters only.

    Weight decay and momentum are the optimiser's, after it.
    """

    reads: ClassVar[tuple[type, ...]] = (Drift,)

    def __call__(self, gradients: Mapping[str, Tensor], step: Step) -> Mapping[str, Tensor]:
        drift = step.visit.one(Drift).values
        return {name: gradient - drift[name].to(gradient) for name, gradient in gradients.items()}
