"""Weighted means of the clients' models."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from flnl.core.messages import ClientResult, Combined
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload
from flnl.numerics.averaging import WeightedSum, divided, summed
from flnl.parts.messages import UsedSamples


class WeightedMean(Aggregator[WeightedSum]):
    """Base class of ``Σ_k w_k θ_k / Σ_k w_k`` over the cohort; the received model if all weights are 0.

    Batch norm's running statistics are averaged like parameters; integer buffers take the maximum over all clients.
    """

    @abstractmethod
    def weights_of(self, results: Sequence[ClientResult], known: Payload) -> list[float]:
        """w_k of each of these clients."""

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> WeightedSum:
        return summed(params, results, self.weights_of(results, known))

    def combine(self, params: Params, values: Iterable[WeightedSum], known: Payload) -> Combined:
        return Combined(divided(params, values))


@dataclass(frozen=True)
class Mean(WeightedMean):
    """The mean with w_k = n_k (FedAvg) or 1 (``weights=uniform``).

    ``weights=used``: w_k is the number of samples that the client says it has trained on (``UsedSamples``), n_k if it
    says nothing.
    """

    weights: Literal["samples", "uniform", "used"]

    @property
    def by_samples(self) -> bool:
        return self.weights != "uniform"

    def weights_of(self, results: Sequence[ClientResult], known: Payload) -> list[float]:
        if self.weights == "uniform":
            return [1.0] * len(results)
        used = [r.reports.get(UsedSamples) if self.weights == "used" else None for r in results]
        return [float(r.num_samples if own is None else own.count) for r, own in zip(results, used, strict=True)]
