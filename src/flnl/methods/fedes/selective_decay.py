"""FedES's selective gradient decay: a client of low quality moves few of its parameters, and moves them little.

The weights of linear and convolution layers are ranked by criticality, all tensors together. What is not ranked
(biases, batch norm) is not masked, but slowed down like the rest.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from flnl.core.ranges import Share
from flnl.methods.fedes.criticality import Scope, in_scope

MaskTarget = Literal["update", "grad"]


def critical_count(size: int, rho: Share) -> int:
    """``m_c = ⌊ρ m⌋``, forgiving binary fractions (FedES, Eq. 14).

    >>> critical_count(100, 0.29)
    29
    """
    return int(rho * size + 1e-9)


def static_masks(criticality: Mapping[str, Tensor], rho: float | Tensor) -> dict[str, Tensor]:
    """Masks by name: True at the ⌊ρ m⌋ most critical of all m entries (FedES, Eqs. 12 to 15).

    Of entries that tie at the threshold the earlier ones are taken, by tensor and then by position, so that the
    number is exact. ρ = 0 masks everything.
    """
    return _largest(criticality, rho, least=0)


def ranks(criticality: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The place of each entry among all, from 0, the most critical: int32, by name and in the tensors' shapes.

    Of ties the earlier entry comes first. What ``static_masks`` would sort for is then a comparison, for any ρ.
    """
    if not criticality:
        return {}
    order = torch.cat([g.flatten() for g in criticality.values()]).sort(descending=True, stable=True).indices
    place = torch.empty_like(order, dtype=torch.int32)
    place[order] = torch.arange(len(order), dtype=torch.int32, device=order.device)
    parts = place.split([g.numel() for g in criticality.values()])
    return {name: part.view(g.shape).clone() for (name, g), part in zip(criticality.items(), parts, strict=True)}


def ranked_masks(place: Mapping[str, Tensor], rho: Share) -> dict[str, Tensor]:
    """``static_masks`` from ``ranks``."""
    count = critical_count(sum(p.numel() for p in place.values()), rho)
    return {name: p < count for name, p in place.items()}


def step_masks(
    gradients: Mapping[str, Tensor], params: Mapping[str, Tensor], rho: float | Tensor, *, scope: Scope = "dims_2_4"
) -> dict[str, Tensor]:
    """Masks of one step, by name of the tensors in scope: ranked by ``|∇ w|`` of the batch, one entry at least.

    What the released program recomputes at every step; the paper ranks once, by the criticality of its first stage.
    """
    found = {name: (g * params[name]).abs() for name, g in gradients.items() if in_scope(params[name], scope)}
    return _largest(found, rho, least=1)


def _largest(values: Mapping[str, Tensor], rho: float | Tensor, least: int) -> dict[str, Tensor]:
    if not values:
        return {}
    flat = torch.cat([v.flatten() for v in values.values()])
    size = len(flat)
    if isinstance(rho, Tensor):  # one of several clients that run stacked
        count: int | Tensor = (rho.double() * size + 1e-9).floor().clamp_min(least)
    else:
        count = max(critical_count(size, rho), least)
    order = flat.sort(descending=True, stable=True).indices
    first = torch.arange(size, device=flat.device) < count
    chosen = torch.zeros_like(flat, dtype=torch.bool).scatter(0, order, first)
    parts = chosen.split([v.numel() for v in values.values()])
    return {name: part.view(v.shape) for (name, v), part in zip(values.items(), parts, strict=True)}


def decayed_gradients(
    gradients: Mapping[str, Tensor], masks: Mapping[str, Tensor], rho: float | Tensor
) -> dict[str, Tensor]:
    """``mask_target=grad``, the released program's: ``ρ M ∘ ∇`` of what is ranked, the plain gradient of the rest.

    Momentum and weight decay then still move entries that are masked.
    """
    return {name: rho * (masks[name] * g) if name in masks else g for name, g in gradients.items()}


def decayed_update(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], masks: Mapping[str, Tensor], rho: float | Tensor
) -> dict[str, Tensor]:
    """``mask_target=update``: ``w + ρ M ∘ (w⁺ - w)``, w⁺ being where the optimiser's step led (FedES, Eq. 16).

    That is ``w - lr ρ (M ∘ v)`` with v after momentum and weight decay, so that a masked entry rests. With ρ = 1 and
    nothing masked it is w⁺ to the bit. Parameters only, no buffers.
    """
    moves = {name: masks[name].to(w.dtype) if name in masks else torch.ones_like(w) for name, w in before.items()}
    return {name: torch.lerp(w, after[name], moves[name] * rho) for name, w in before.items()}
