"""FAIR's aggregator: the mean of the models that reduced the loss, weighted by how much they did."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from flnl.core.messages import ClientResult, Combined
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload
from flnl.methods.fair.exchange import QualityEstimates
from flnl.numerics.averaging import WeightedSum, divided, models_of, summed


@dataclass(frozen=True)
class Candidate:
    """A client's model and its estimated quality."""

    client: int
    quality: float
    params: Params


@dataclass(frozen=True)
class QualitySum:
    """A block's contribution: its weighted sum with each client's weight, and its best model."""

    weights: dict[int, float]
    summed: WeightedSum
    best: Candidate | None  # None without clients


@dataclass(frozen=True)
class LearningQualityMean(Aggregator[QualitySum]):
    """``Σ_k n_k max(q̂_k, 0) θ_k / Σ_k n_k max(q̂_k, 0)`` with q̂_k the client's estimated learning quality (FAIR).

    If n_k is a factor of q̂_k already, it is not taken again. If no client of the cohort has a positive quality,
    ``nonpositive=best`` takes the model of the client with the highest one, ``skip`` leaves the model as it is; then
    ``aggregation/fallback`` is 1 in the round's metrics. ``aggregation/rejected`` is the number of clients of weight 0.

    Running statistics are averaged like parameters; integer buffers take the maximum over the cohort.
    """

    reads: ClassVar[tuple[type, ...]] = (QualityEstimates,)
    by_samples: ClassVar[bool] = True  # always: the number of samples is a factor beside the quality, or of it
    nonpositive: Literal["best", "skip"]

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> QualitySum:
        """Weighted sums over a few clients; weights are relative to the highest quality of all clients."""
        estimates = known.one(QualityEstimates)
        highest = float(estimates.value.max())
        candidates = [
            Candidate(r.client, float(estimates.value[r.client]), model)
            for r, model in zip(results, models_of(results), strict=True)
        ]
        weights = {
            c.client: (c.quality / highest) * (1 if estimates.sized else r.num_samples) if c.quality > 0 else 0.0
            for c, r in zip(candidates, results, strict=True)
        }
        best = max(candidates, key=lambda c: c.quality, default=None)
        return QualitySum(weights, summed(params, results, list(weights.values())), best)

    def combine(self, params: Params, values: Iterable[QualitySum], known: Payload) -> Combined:
        """The mean; ``params`` itself if there is no model to take."""
        blocks = list(values)
        weights = {client: weight for block in blocks for client, weight in block.weights.items()}
        facts = {"rejected": float(sum(not weight for weight in weights.values())), "fallback": 0.0}
        if any(weights.values()):
            return Combined(divided(params, [block.summed for block in blocks]), weights, facts)
        facts["fallback"] = 1.0
        candidates = [block.best for block in blocks if block.best is not None and block.best.quality > -float("inf")]
        if self.nonpositive == "skip" or not candidates:
            return Combined(params, weights, facts)
        best = max(candidates, key=lambda c: c.quality)
        return Combined(best.params, {**weights, best.client: 1.0}, facts)
