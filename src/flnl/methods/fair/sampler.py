"""FAIR's sampler: the clients of the highest estimated learning quality."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from flnl.core.parts import ClientSampler, Sampling
from flnl.core.ranges import PositiveShare, Share
from flnl.methods.fair.exchange import QualityEstimates
from flnl.numerics.rounding import cohort_size
from flnl.parts.samplers.uniform import OnePass


@dataclass(frozen=True)
class TopQuality(ClientSampler):
    """After one pass over all clients in random order, the S clients of the highest estimated quality q̂.

    FAIR's auction with equal prices is this choice. With probability ``exploration`` a place is not given to the next
    best client, but drawn: uniformly, as in an ε-greedy choice, among all who have none, so that the draw may fall on
    one of the S best again. Clients without an estimate are behind all others; ties are broken at random.
    """

    reads: ClassVar[tuple[type, ...]] = (QualityEstimates,)
    fraction: PositiveShare
    exploration: Share

    def __call__(self, sampling: Sampling) -> list[int]:
        """``max(⌊γN⌋, 1)`` clients, or those who are left at the end of the first pass."""
        clients, size = list(sampling.clients), self.size(len(sampling.clients))
        if sampling.clock.stage_round < math.ceil(len(clients) / size):
            return OnePass(self.fraction, start="chain", cohorts="partition")(sampling)
        estimates = sampling.known.one(QualityEstimates).value[clients].numpy()
        order = np.lexsort((sampling.stream("ties").permutation(len(clients)), -estimates))
        rng = sampling.stream("exploration")
        best = size - int(rng.binomial(size, self.exploration))
        drawn = rng.choice(order[best:], size - best, replace=False)
        return [clients[i] for i in (*order[:best], *drawn)]

    def size(self, clients: int) -> int:
        return cohort_size(self.fraction, clients)
