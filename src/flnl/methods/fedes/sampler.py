"""FedES's sampler of clients by their estimated quality."""

from dataclasses import dataclass
from typing import ClassVar

from flnl.core.parts import ClientSampler, Sampling
from flnl.core.ranges import PositiveShare, Share
from flnl.methods.fedes.exchange import ClientQualities
from flnl.methods.fedes.quality import of_quality
from flnl.numerics.rounding import cohort_size
from flnl.parts.samplers.uniform import draw_clients


@dataclass(frozen=True)
class OfQuality(ClientSampler):
    """Draws uniformly among the clients whose estimated quality is at least ``threshold`` (FedES, Table 5, CS)."""

    reads: ClassVar[tuple[type, ...]] = (ClientQualities,)
    fraction: PositiveShare
    threshold: Share

    def __call__(self, sampling: Sampling) -> list[int]:
        """At most ``max(⌊γN⌋, 1)`` of them; if there is none, of the clients with the highest quality."""
        rho = sampling.known.one(ClientQualities).value[list(sampling.clients)].numpy()
        good = [
            client for client, enough in zip(sampling.clients, of_quality(rho, self.threshold), strict=True) if enough
        ]
        if not good:
            good = [client for client, quality in zip(sampling.clients, rho, strict=True) if quality == rho.max()]
        return draw_clients(sampling, good, self.size(len(sampling.clients)))

    def size(self, clients: int) -> int:
        return cohort_size(self.fraction, clients)
