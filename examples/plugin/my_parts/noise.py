"""Noise inside clients that comes in runs."""

from dataclasses import dataclass

import numpy as np

from flnl.core.images import Labels
from flnl.core.ranges import Share
from flnl.core.streams import stream
from flnl.data.dataset import Dataset
from flnl.data.noise import Rates


@dataclass(frozen=True)
class Tired:
    """Clients label worse and worse: from some sample on, a client gives every sample the label of the one before.

    A share ``noisy`` of the clients is tired (each with this probability), for the last ``share`` of its samples.
    """

    noisy: Share
    share: Share

    @property
    def nominal(self) -> float:
        """The mean share of labels that are drawn anew; some stay right by chance."""
        return self.noisy * self.share

    def rates(self, num_clients: int, seed: int) -> Rates:
        """Each client's rate [K], from a stream of its own: removing a client changes no other."""
        tired = [stream(seed, "tired", client).random() < self.noisy for client in range(num_clients)]
        return np.where(tired, self.share, 0.0)

    def __call__(self, labels: Labels, rate: float, dataset: Dataset, rng: np.random.Generator, /) -> Labels:
        """One client's given labels [n]."""
        given, first = labels.copy(), len(labels) - round(rate * len(labels))
        if first < len(labels):
            given[first:] = labels[max(first - 1, 0) : len(labels) - 1] if first else np.roll(labels, 1)
        return given
