"""FedCorr's sampler of clean clients."""

import logging
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from flnl.core.parts import ClientSampler, Sampling
from flnl.core.ranges import PositiveShare, Share
from flnl.methods.fedcorr.exchange import NoiseLevels
from flnl.numerics.rounding import cohort_size
from flnl.parts.samplers.uniform import draw_clients

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class CleanOnly(ClientSampler):
    """Draws uniformly among the clients whose estimated noise level is at most κ (FedCorr, Sec. 3.3).

    If there is none, the cohort is the ``max(⌊γN⌋, 1)`` cleanest clients.
    """

    reads: ClassVar[tuple[type, ...]] = (NoiseLevels,)
    fraction: PositiveShare
    kappa: Share

    def __call__(self, sampling: Sampling) -> list[int]:
        level = sampling.known.one(NoiseLevels).level
        clean = [client for client in sampling.clients if float(level[client]) <= self.kappa]
        count = self.size(len(sampling.clients))
        if clean:
            return draw_clients(sampling, clean, count)
        if sampling.clock.stage_round == 0:
            log.warning("no client has a noise level up to kappa=%s; using the %d cleanest", self.kappa, count)
        everyone = torch.tensor(sampling.clients)
        order = np.argsort(level[everyone].numpy(), kind="stable")
        return [int(everyone[i]) for i in order[:count]]

    def size(self, clients: int) -> int:
        return cohort_size(self.fraction, clients)
