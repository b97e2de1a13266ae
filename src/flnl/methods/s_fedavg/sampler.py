"""S-FedAvg's sampler of clients by their relevance."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flnl.core.parts import ClientSampler, Sampling, Setting
from flnl.core.ranges import PositiveShare
from flnl.methods.s_fedavg.exchange import SelectionScores
from flnl.numerics.rounding import cohort_size


@dataclass(frozen=True)
class ByRelevance(ClientSampler):
    """Draws clients one after another, without replacement, with probabilities ∝ ``softmax(φ / T)`` (S-FedAvg).

    The draw takes the largest of φ / T plus Gumbel noise, which has the same distribution and works for any T > 0, also
    where a probability is too small to be represented.
    """

    reads: ClassVar[tuple[type, ...]] = (SelectionScores,)
    fraction: PositiveShare

    def caution(self, setting: Setting) -> str | None:
        """With all clients in every round, nothing is selected."""
        clients = len(setting.sizes)
        if self.size(clients) < clients:
            return None
        return (
            f"{setting.key}.fraction={self.fraction:g} takes all of {clients} clients, so relevances select none: set "
            "a smaller fraction"
        )

    def __call__(self, sampling: Sampling) -> list[int]:
        """``max(⌊γN⌋, 1)`` clients, in the order of the draw."""
        clients = list(sampling.clients)
        scores = sampling.known.one(SelectionScores).value[clients].numpy()
        keys = scores + sampling.stream("relevance").gumbel(size=len(clients))
        return [clients[i] for i in np.argsort(-keys, kind="stable")[: self.size(len(clients))]]

    def size(self, clients: int) -> int:
        return cohort_size(self.fraction, clients)
