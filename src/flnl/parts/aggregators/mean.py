"""Weighted means of the clients' models."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from flnl.core.messages import ClientResult, Combined
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload
from flnl.numerics.averaging import WeightedSum, divided, summed


@dataclass(frozen=True)
class Mean(Aggregator[WeightedSum]):
    """``Σ_k w_k θ_k / Σ_k w_k`` over the cohort, with w_k = n_k (FedAvg) or 1 (``weights=uniform``).

    Batch norm's running statistics are averaged like parameters; integer buffers take the maximum.
    """

    weights: Literal["samples", "uniform"]

    @property
    def by_samples(self) -> bool:
        """Under ``weights=samples``."""
        return self.weights == "samples"

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> WeightedSum:
        """Weighted sums over a few clients."""
        return summed(params, results, [float(r.num_samples) if self.weights == "samples" else 1.0 for r in results])

    def combine(self, params: Params, values: Iterable[WeightedSum], known: Payload) -> Combined:
        """The mean; ``params`` itself if there are no contributions."""
        return Combined(divided(params, values))
