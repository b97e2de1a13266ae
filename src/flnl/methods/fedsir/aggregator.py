"""FedSIR's mean of the first stage: of clean clients alone."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from flnl.core.messages import ClientResult, Combined
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload
from flnl.numerics.averaging import WeightedSum, divided, summed
from flnl.parts.messages import ClientTags


@dataclass(frozen=True)
class CleanMean(Aggregator[WeightedSum]):
    """``Σ n_k θ_k / Σ n_k`` over the clients of the cohort that are not noisy; the received model if there are none.

    Running statistics are averaged like parameters; integer buffers take the maximum over all.
    """

    reads: ClassVar[tuple[type, ...]] = (ClientTags,)

    @property
    def by_samples(self) -> bool:
        return True

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> WeightedSum:
        noisy = known.one(ClientTags).noisy
        return summed(params, results, [0.0 if noisy[r.client] else float(r.num_samples) for r in results])

    def combine(self, params: Params, values: Iterable[WeightedSum], known: Payload) -> Combined:
        return Combined(divided(params, values))
