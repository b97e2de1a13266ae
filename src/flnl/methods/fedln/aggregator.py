"""NA-FedAvg's mean of models, in which noisy clients count less."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flnl.core.messages import ClientResult, Combined
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload
from flnl.methods.fedln.exchange import NoiseAwareWeights
from flnl.numerics.averaging import WeightedSum, divided, summed


@dataclass(frozen=True)
class NoiseAwareMean(Aggregator[WeightedSum]):
    """``Σ_k w_k θ_k / Σ_k w_k`` with the weights found from energies, n_k for a client that has not been judged."""

    reads: ClassVar[tuple[type, ...]] = (NoiseAwareWeights,)

    @property
    def by_samples(self) -> bool:
        return True

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> WeightedSum:
        found = known.one(NoiseAwareWeights).value
        own = [float(r.num_samples if found[r.client].isnan() else found[r.client]) for r in results]
        return summed(params, results, own)

    def combine(self, params: Params, values: Iterable[WeightedSum], known: Payload) -> Combined:
        """The mean; ``params`` itself if nobody in the cohort has a weight."""
        return Combined(divided(params, values))
