"""Noise models: they draw given labels from true ones.

There are two kinds, which are drawn at different times. Noise *of the set* ignores clients; it is drawn before the
partition, which may then follow the noisy labels. Noise *inside clients* has a rate for each client; it is drawn after
the partition, from a separate stream per client, so no client's labels depend on another's.
"""

from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from flnl.core.images import Indices, Labels
from flnl.core.streams import stream
from flnl.data import checked
from flnl.data.dataset import Dataset

Rates = NDArray[np.float64]


class SetNoise(Protocol):
    """Noise of the whole set: a sample's given label depends on that sample alone.

    Noise may have a property ``expected``: the share of wrong labels, as far as it is known before they are drawn.
    Methods that are given the noise rate get this one if no rate is configured, or if it clearly differs.
    """

    @property
    def nominal(self) -> float | None:
        """The configured rate; None if the labels determine it."""

    def __call__(self, dataset: Dataset, seed: int, /) -> Labels:
        """The given labels, int64 [N]."""


@runtime_checkable
class ClientNoise(Protocol):
    """Noise inside clients, at a separate rate for each client."""

    def rates(self, num_clients: int, seed: int) -> Rates:
        """Each client's rate, [K]: the share of its labels that the model redraws (see the model)."""

    def __call__(self, labels: Labels, rate: float, dataset: Dataset, rng: np.random.Generator, /) -> Labels:
        """One client's given labels [n], from its true ``labels`` [n]."""


@runtime_checkable
class OfClients(Protocol):
    """Noise inside clients that differs by more than a rate."""

    def of(self, client: int, num_clients: int, /) -> Callable[[Labels, float, Dataset, np.random.Generator], Labels]:
        """What draws the labels of a client of so many, as ``ClientNoise`` is called."""


Noise = SetNoise | ClientNoise


def corrupt(
    noise: ClientNoise, dataset: Dataset, truth: Labels, clients: Sequence[Indices], seed: int
) -> tuple[Labels, Rates]:
    """Draw given labels [N] and each client's rate [K]; samples without a client keep their true label.

    Raises:
        UserError: if the noise gives anything but rates and labels.
    """
    given = truth.copy()
    rates = checked.rates(noise, noise.rates(len(clients), seed), len(clients))
    by_client = noise.of if isinstance(noise, OfClients) else None
    for k, index in enumerate(clients):
        drawing = noise if by_client is None else by_client(k, len(clients))
        drawn = drawing(truth[index], float(rates[k]), dataset, stream(seed, "noise", k))
        given[index] = checked.labels(noise, drawn, len(index), dataset.num_classes, k)
    return given, rates
