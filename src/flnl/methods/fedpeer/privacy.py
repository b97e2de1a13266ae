"""FedPeer's label privacy: the ε that each client has spent.

Each client randomises its labels once, the server recovers their distribution (``flnl.numerics.randomised_response``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from flnl.core.stored import stored


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
