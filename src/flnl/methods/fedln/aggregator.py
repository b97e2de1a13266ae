"""NA-FedAvg's mean of models, in which noisy clients count less."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from flnl.core.messages import ClientResult
from flnl.core.payload import Payload
from flnl.methods.fedln.exchange import NoiseAwareWeights
from flnl.parts.aggregators.mean import WeightedMean


@dataclass(frozen=True)
class NoiseAwareMean(WeightedMean):
    """``Σ_k w_k θ_k / Σ_k w_k`` with the weights found from energies, n_k for a client that has not been judged."""

    reads: ClassVar[tuple[type, ...]] = (NoiseAwareWeights,)
    by_samples: ClassVar[bool] = True

    def weights_of(self, results: Sequence[ClientResult], known: Payload) -> list[float]:
        found = known.one(NoiseAwareWeights).value
        return [float(r.num_samples if found[r.client].isnan() else found[r.client]) for r in results]
