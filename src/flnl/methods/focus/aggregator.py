"""FOCUS's aggregator: the mean weighted by samples and credibility."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flnl.core.messages import ClientResult, Combined
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload
from flnl.methods.focus.exchange import Credibilities
from flnl.numerics.averaging import WeightedSum, divided, summed


@dataclass(frozen=True)
class CredibleSum:
    """A block's contribution: its weighted sum, and each client's weight."""

    weights: dict[int, float]
    summed: WeightedSum


@dataclass(frozen=True)
class CredibilityMean(Aggregator[CredibleSum]):
    """``Σ_k n_k C_k θ_k / Σ_k n_k C_k`` with C_k the client's credibility (Chen et al. 2020).

    Running statistics are averaged like parameters; integer buffers take the maximum.
    """

    reads: ClassVar[tuple[type, ...]] = (Credibilities,)
    by_samples: ClassVar[bool] = True  # always: the number of samples is a factor beside the credibility

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> CredibleSum:
        credible = known.one(Credibilities).value
        weights = {r.client: r.num_samples * credible[r.client] for r in results}
        return CredibleSum(weights, summed(params, results, list(weights.values())))

    def combine(self, params: Params, values: Iterable[CredibleSum], known: Payload) -> Combined:
        """The mean; ``params`` itself if no client is credible."""
        blocks = list(values)
        weights = {client: weight for block in blocks for client, weight in block.weights.items()}
        return Combined(divided(params, [block.summed for block in blocks]), weights)
