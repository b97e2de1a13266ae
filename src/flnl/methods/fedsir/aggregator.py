"""FedSIR's mean of the first stage: of clean clients alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from flnl.core.messages import ClientResult
from flnl.core.payload import Payload
from flnl.parts.aggregators.mean import WeightedMean
from flnl.parts.messages import ClientTags


@dataclass(frozen=True)
class CleanMean(WeightedMean):
    """``Σ n_k θ_k / Σ n_k`` over the clients of the cohort that are not noisy; the received model if there are none."""

    reads: ClassVar[tuple[type, ...]] = (ClientTags,)
    by_samples: ClassVar[bool] = True

    def weights_of(self, results: Sequence[ClientResult], known: Payload) -> list[float]:
        noisy = known.one(ClientTags).noisy
        return [0.0 if noisy[r.client] else float(r.num_samples) for r in results]
