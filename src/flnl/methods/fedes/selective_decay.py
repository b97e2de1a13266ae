"""FedES's selective gradient decay: low-quality clients update few of their parameters, by small steps.

The weights of linear and convolution layers are ranked by criticality, across all tensors. Other parameters (biases,
batch norm) are not masked, but their updates are scaled like the others.
"""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from flnl.core.ranges import Share
from flnl.methods.fedes.criticality import Scope, in_scope
from flnl.numerics.rounding import TOLERANCE, whole

MaskTarget = Literal["update", "grad"]


def critical_count(size: int, rho: Share) -> int:
    """``m_c = ⌊ρ m⌋``, with a tolerance for rounding in ρ m (FedES, Eq. 14).

    >>> critical_count(100, 0.29)
    29
    """
    return whole(rho * size)


def _count(size: int, rho: float | Tensor, least: int = 0) -> int | Tensor:
    """``critical_count``, at least ``least``; of stacked clients a tensor, since ρ is one."""
    if not isinstance(rho, Tensor):
        return max(critical_count(size, rho), least)
    rounding = size * torch.finfo(rho.dtype).eps / 2  # of ρ m, if ρ was rounded to this precision
    return (rho.double() * size + max(rounding, TOLERANCE)).floor().clamp_min(least)


def ranks(criticality: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The rank of each entry among all, from 0 for the most critical: int32, by name and in the tensors' shapes.

    Of ties the earlier entry comes first. With ranks, ``ranked_masks`` needs no sorting for any ρ.
    """
    if not criticality:
        return {}
    order = torch.cat([g.flatten() for g in criticality.values()]).sort(descending=True, stable=True).indices
    place = torch.empty_like(order, dtype=torch.int32)
    place[order] = torch.arange(len(order), dtype=torch.int32, device=order.device)
    parts = place.split([g.numel() for g in criticality.values()])
    return {name: part.view(g.shape).clone() for (name, g), part in zip(criticality.items(), parts, strict=True)}


def ranked_masks(place: Mapping[str, Tensor], rho: float | Tensor) -> dict[str, Tensor]:
    """Masks by name, from the result of ``ranks``: True at the ⌊ρ m⌋ most critical of all m entries (Eqs. 12 to 15).

    ρ = 0 gives False everywhere.
    """
    count = _count(sum(p.numel() for p in place.values()), rho)
    return {name: p < count for name, p in place.items()}


def step_masks(
    gradients: Mapping[str, Tensor], params: Mapping[str, Tensor], rho: float | Tensor, *, scope: Scope = "dims_2_4"
) -> dict[str, Tensor]:
    """Masks for one step, by name of the tensors in scope: ranked by ``|∇ w|`` of the batch, with at least one entry.

    The released program recomputes masks at every step; the paper ranks once, by the criticality of the first stage.
    """
    values = {name: (g * params[name]).abs() for name, g in gradients.items() if in_scope(params[name], scope)}
    if not values:
        return {}
    flat = torch.cat([v.flatten() for v in values.values()])
    size, count = len(flat), _count(len(flat), rho, least=1)
    order = flat.sort(descending=True, stable=True).indices
    first = torch.arange(size, device=flat.device) < count
    chosen = torch.zeros_like(flat, dtype=torch.bool).scatter(0, order, first)
    parts = chosen.split([v.numel() for v in values.values()])
    return {name: part.view(v.shape) for (name, v), part in zip(values.items(), parts, strict=True)}


def decayed_gradients(
    gradients: Mapping[str, Tensor], masks: Mapping[str, Tensor], rho: float | Tensor
) -> dict[str, Tensor]:
    """``target=grad``, as in the released program: ``ρ M ∘ ∇`` for ranked tensors, the plain gradient for others.

    Momentum and weight decay still change masked entries.
    """
    return {name: rho * (masks[name] * g) if name in masks else g for name, g in gradients.items()}


def decayed_update(
    before: Mapping[str, Tensor], after: Mapping[str, Tensor], masks: Mapping[str, Tensor], rho: float | Tensor
) -> dict[str, Tensor]:
    """``target=update``: ``w + ρ M ∘ (w⁺ - w)``, with w⁺ the parameters after the optimiser's step (FedES, Eq. 16).

    This equals ``w - lr ρ (M ∘ v)`` with v including momentum and weight decay, so masked entries do not change. With
    ρ = 1 and nothing masked, the result is bit-identical to w⁺. Parameters only, no buffers.
    """
    moved = {name: torch.lerp(w, after[name], rho) for name, w in before.items()}
    return {name: torch.where(masks[name], w, before[name]) if name in masks else w for name, w in moved.items()}
