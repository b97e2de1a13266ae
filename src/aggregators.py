"""How the clients' models are combined. Sums are taken in float64, in order of client."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from src.core import Aggregator, ClientResult, Params


@dataclass(frozen=True)
class WeightedSum:
    """A block's contribution. ``single`` is the one model of a block of one, kept to be exact."""

    weight: float
    totals: dict[str, Tensor]  # float64 sums of weight · parameter; the maximum for integers
    single: Params | None


@dataclass(frozen=True)
class Mean(Aggregator[WeightedSum]):
    """``Σ_k w_k θ_k / Σ_k w_k`` over the cohort, with w_k = n_k (FedAvg) or 1 (``weights=uniform``).

    Batch norm's running statistics are averaged as parameters are; integer buffers take the maximum.
    """

    weights: Literal["samples", "uniform"]

    def block(self, params: Params, results: Sequence[ClientResult]) -> WeightedSum:
        """Sums over a few clients."""
        weights = [float(r.num_samples) if self.weights == "samples" else 1.0 for r in results]
        models = [r.params for r in results if r.params is not None]
        assert len(models) == len(results), "models are combined where the clients ran"
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

    def combine(self, params: Params, values: Iterable[WeightedSum]) -> Params:
        """The mean; ``params`` itself where nobody contributed."""
        blocks = [v for v in values if v.weight > 0]
        if not blocks:
            return params
        if len(blocks) == 1 and blocks[0].single is not None:
            return blocks[0].single
        weight = sum(b.weight for b in blocks)
        combined: Params = {}
        for name, received in params.items():
            total = blocks[0].totals[name]
            for block in blocks[1:]:
                more = block.totals[name]
                total = total + more if received.is_floating_point() else torch.maximum(total, more)
            combined[name] = (total / weight).to(received.dtype) if received.is_floating_point() else total
        return combined
