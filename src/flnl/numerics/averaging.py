"""Weighted means of models, block by block. Sums are computed in float64, in the order of clients."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flnl.core.messages import ClientResult
from flnl.core.payload import Params


@dataclass(frozen=True)
class WeightedSum:
    """A block's contribution. ``single`` is the model of a block with one client, kept so that its mean is exact."""

    weight: float
    totals: dict[str, Tensor]  # float64 sums of weight · parameter; for integers the maximum
    single: Params | None


def summed(params: Params, results: Sequence[ClientResult], weights: Sequence[float]) -> WeightedSum:
    """The weighted sums of a block of clients' models, in the order of clients."""
    return weighted_sum(params, models_of(results), weights)


def models_of(results: Sequence[ClientResult]) -> list[Params]:
    """The clients' models, which the results must still have."""
    models = [r.params for r in results if r.params is not None]
    assert len(models) == len(results), "models are combined in the process where the clients ran"
    return models


def weighted_sum(params: Params, models: Sequence[Params], weights: Sequence[float]) -> WeightedSum:
    """The weighted sums of ``models``, with the entries of ``params``."""
    totals: dict[str, Tensor] = {}
    for name, received in params.items():
        entries = [m[name] for m in models]
        if not entries:
            continue
        if received.is_floating_point():
            total = entries[0].double() * weights[0]
            for entry, weight in zip(entries[1:], weights[1:], strict=True):
                total.add_(entry.double(), alpha=weight)
            totals[name] = total
        else:
            totals[name] = torch.stack(entries).amax(0)
    return WeightedSum(sum(weights), totals, models[0] if len(models) == 1 else None)


def divided(params: Params, values: Iterable[WeightedSum]) -> Params:
    """The sum of all blocks divided by their weight; ``params`` unchanged if the total weight is zero.

    Integers are the maximum over all clients, whatever their weight.
    """
    everyone = list(values)
    blocks = [v for v in everyone if v.weight > 0]
    if not blocks:
        return params
    weight, single = sum(b.weight for b in blocks), blocks[0].single if len(blocks) == 1 else None
    combined: Params = {}
    for name, received in params.items():
        if not received.is_floating_point():
            combined[name] = functools.reduce(torch.maximum, [v.totals[name] for v in everyone if v.totals])
        elif single is not None:
            combined[name] = single[name]
        else:
            total = functools.reduce(torch.add, [b.totals[name] for b in blocks])
            combined[name] = (total / weight).to(received.dtype)
    return combined
