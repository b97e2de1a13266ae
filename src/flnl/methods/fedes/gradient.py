"""FedES's gradient transform: low-quality clients update only their most critical parameters, by smaller steps."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from flnl.core.onto import onto
from flnl.core.parts import GradientTransform
from flnl.core.step import Step
from flnl.methods.fedes.criticality import Scope
from flnl.methods.fedes.exchange import ClientQuality, CriticalityRanks
from flnl.methods.fedes.selective_decay import MaskTarget, decayed_gradients, decayed_update, ranked_masks, step_masks


@dataclass(frozen=True)
class SelectiveDecay(GradientTransform):
    """``w ← w - lr ρ (M ∘ v)``: M is 1 at the ρ m most critical of m entries (FedES, Eqs. 12 to 16).

    ``target=update``: v is the optimiser's step, including momentum and weight decay, so masked entries do not change;
    biases and batch norm are not masked, only scaled by ρ. ``grad``, as in the released program, changes the gradients
    only. ``mask=static`` ranks by the criticality of the first stage, ``per_step`` by ``|∇ w|`` of the batch. A client
    that received no quality, or any client under ``enabled=false``, trains as usual; without ranks nothing is masked.
    """

    reads: ClassVar[tuple[type, ...]] = (ClientQuality, CriticalityRanks)
    mask: Literal["static", "per_step"]
    target: MaskTarget
    scope: Scope
    enabled: bool

    def __call__(self, gradients: Mapping[str, Tensor], step: Step) -> Mapping[str, Tensor]:
        """``ρ M ∘ ∇`` under ``target=grad``, else the gradients as they are."""
        rho = self._rho(step)
        if rho is None or self.target == "update":
            return gradients
        return decayed_gradients(gradients, self._masks(step, gradients, step.params, rho), rho)

    def update(
        self, before: Mapping[str, Tensor], after: Mapping[str, Tensor], gradients: Mapping[str, Tensor], step: Step
    ) -> Mapping[str, Tensor]:
        """``w + ρ M ∘ (w⁺ - w)`` under ``target=update``, else w⁺."""
        rho = self._rho(step)
        if rho is None or self.target == "grad":
            return after
        return decayed_update(before, after, self._masks(step, gradients, before, rho), rho)

    def _rho(self, step: Step) -> float | Tensor | None:
        quality = step.broadcast.extras.get(ClientQuality)
        return None if quality is None or not self.enabled else quality.value

    def _masks(
        self, step: Step, gradients: Mapping[str, Tensor], params: Mapping[str, Tensor], rho: float | Tensor
    ) -> Mapping[str, Tensor]:
        if self.mask == "per_step":
            return step_masks(gradients, params, rho, scope=self.scope)
        kept = step.kept.get(CriticalityRanks)
        return {} if kept is None else ranked_masks({n: onto(p, params[n].device) for n, p in kept.place.items()}, rho)
