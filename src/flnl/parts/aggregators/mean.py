"""Weighted means of the clients' models."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from flnl.core.messages import ClientResult, Combined
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload
from flnl.numerics.averaging import WeightedSum, divided, summed
from flnl.parts.messages import UsedSamples


@dataclass(frozen=True)
class Mean(Aggregator[WeightedSum]):
    """``Σ_k w_k θ_k / Σ_k w_k`` over the cohort, with w_k = n_k (FedAvg) or 1 (``weights=uniform``).

    ``weights=used``: w_k is the number of samples that the client says it has trained on (``UsedSamples``), n_k if it
    says nothing.

    Batch norm's running statistics are averaged like parameters; integer buffers take the maximum.
    """

    weights: Literal["samples", "uniform", "used"]

    @property
    def by_samples(self) -> bool:
        return self.weights != "uniform"

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> WeightedSum:
        return summed(params, results, [self._weight(r) for r in results])

    def combine(self, params: Params, values: Iterable[WeightedSum], known: Payload) -> Combined:
        """The mean; ``params`` itself if there are no contributions."""
        return Combined(divided(params, values))

    def _weight(self, result: ClientResult) -> float:
        used = result.reports.get(UsedSamples) if self.weights == "used" else None
        return 1.0 if self.weights == "uniform" else float(result.num_samples if used is None else used.count)
