"""FedES's mean of models, weighted by the clients' estimated quality."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from flnl.core.messages import ClientResult
from flnl.core.payload import Payload
from flnl.methods.fedes.exchange import ClientQualities
from flnl.parts.aggregators.mean import WeightedMean


@dataclass(frozen=True)
class QualityMean(WeightedMean):
    """``Σ_k n_k ρ_k θ_k / Σ_k n_k ρ_k`` with ρ_k the client's estimated data quality (FedES, Eq. 18).

    ``weights=samples`` omits ρ, as an ablation. If all clients of the cohort have quality 0, the model stays as it is.
    """

    reads: ClassVar[tuple[type, ...]] = (ClientQualities,)
    by_samples: ClassVar[bool] = True  # always: the quality is a factor beside the number of samples
    weights: Literal["quality", "samples"]

    def weights_of(self, results: Sequence[ClientResult], known: Payload) -> list[float]:
        rho = known.one(ClientQualities).value
        factors = [float(rho[r.client]) if self.weights == "quality" else 1.0 for r in results]
        return [r.num_samples * factor for r, factor in zip(results, factors, strict=True)]
