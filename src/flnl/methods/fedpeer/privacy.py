"""FedPeer's label privacy: whose labels peers are drawn from, and the ε that each client has spent.

Each client randomises its labels once, the server recovers their distribution (``flnl.numerics.randomised_response``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flnl.core.stored import stored

Array = NDArray[np.float64]
PeerDistribution = Literal["global_dp", "global_true", "local", "uniform"]


def peer_distribution(kind: PeerDistribution, *, recovered: Array, given: Array, local: Array) -> Array:
    """The distribution q [K] that a client draws peer labels from.

    ``global_dp``: recovered by the server. ``global_true``: the shares of all given labels, without privacy.
    ``local``: the shares of the client's given labels. ``uniform``: equal shares.
    """
    return {
        "global_dp": recovered,
        "global_true": given,
        "local": local,
        "uniform": np.full(len(given), 1 / len(given)),
    }[kind]


@stored("PrivacySpent")
@dataclass(frozen=True)
class PrivacySpent:
    """ε spent by each client. It accumulates over releases, so labels are randomised only once."""

    epsilon: Mapping[int, float] = field(default_factory=dict)

    def of(self, client: int) -> float:
        """ε spent by a client; 0 before its first release."""
        return self.epsilon.get(client, 0.0)

    def released(self, client: int, epsilon: float) -> "PrivacySpent":
        """The account after one more release."""
        return PrivacySpent({**self.epsilon, client: self.of(client) + epsilon})

    @property
    def most(self) -> float:
        """The largest ε that any client has spent."""
        return max(self.epsilon.values(), default=0.0)
