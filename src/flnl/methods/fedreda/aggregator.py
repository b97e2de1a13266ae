"""FedReDA's mean: clients count by the share of their samples that they trust."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from flnl.core.messages import ClientResult, Combined
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload
from flnl.methods.fedreda.exchange import TrustedShare
from flnl.numerics.averaging import WeightedSum, divided, summed


@dataclass(frozen=True)
class TrustedMean(Aggregator[WeightedSum]):
    """``Σ s_k θ_k / Σ s_k`` with the shares s_k; 1 for a client that sends none. Numbers of samples do not count.

    Running statistics are averaged like parameters; integer buffers take the maximum.
    """

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> WeightedSum:
        sent = [r.reports.get(TrustedShare) for r in results]
        return summed(params, results, [1.0 if share is None else share.value for share in sent])

    def combine(self, params: Params, values: Iterable[WeightedSum], known: Payload) -> Combined:
        """The mean; ``params`` itself if all shares are 0."""
        return Combined(divided(params, values))
