"""Clients in turn."""

from dataclasses import dataclass

from flnl.core.parts import ClientSampler, Sampling
from flnl.core.ranges import PositiveShare
from flnl.numerics.rounding import cohort_size


@dataclass(frozen=True)
class InTurn(ClientSampler):
    """The clients of a stage in the order of their numbers, a ``fraction`` of them a round, round and round."""

    fraction: PositiveShare

    def __call__(self, sampling: Sampling) -> list[int]:
        """The next clients."""
        size, clients = self.size(len(sampling.clients)), sampling.clients
        first = sampling.clock.stage_round * size
        return [clients[(first + i) % len(clients)] for i in range(size)]

    def size(self, clients: int) -> int:
        """``max(⌊γN⌋, 1)``."""
        return cohort_size(self.fraction, clients)
