"""FedReDA's mean: clients count by the share of their samples that they trust."""

from collections.abc import Sequence
from dataclasses import dataclass

from flnl.core.messages import ClientResult
from flnl.core.payload import Payload
from flnl.methods.fedreda.exchange import TrustedShare
from flnl.parts.aggregators.mean import WeightedMean


@dataclass(frozen=True)
class TrustedMean(WeightedMean):
    """``Σ s_k θ_k / Σ s_k`` with the shares s_k; 1 for a client that sends none. Numbers of samples do not count."""

    def weights_of(self, results: Sequence[ClientResult], known: Payload) -> list[float]:
        sent = [r.reports.get(TrustedShare) for r in results]
        return [1.0 if share is None else share.value for share in sent]
