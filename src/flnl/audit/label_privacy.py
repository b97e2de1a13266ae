"""Messages of the two rounds under label differential privacy.

Each client randomises its labels once (``RandomisedResponse``) and sends functions of the drawn labels only, so all of
its messages together cost one ε. The server recovers unbiased totals. This covers the messages of an audit: the model
itself has learned from the labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from flnl.audit.counting import ONE, Counts, fixed_point, thresholds_of
from flnl.core.images import Labels
from flnl.core.streams import stream
from flnl.numerics.randomised_response import RandomisedResponse

Array = NDArray[np.float64]

PURPOSE = "audit label privacy"
FEWEST = 0.5
"""A class with a recovered count below this counts as absent."""


def drawn_labels(response: RandomisedResponse, labels: Sequence[Labels], clients: Sequence[int], seed: int) -> Labels:
    """The randomised labels [N] of all clients, one after another.

    Args:
        response: the randomised response.
        labels: each client's given labels [n].
        clients: the clients' numbers; each draws from a stream of its own.
        seed: the data seed of the run.
    """
    drawn = [response.randomised(own, stream(seed, PURPOSE, c)) for c, own in zip(clients, labels, strict=True)]
    return np.concatenate(drawn) if drawn else np.zeros(0, np.int64)


@dataclass(frozen=True, eq=False)
class RandomisedSums:
    """A client's message of the first round, or a total: functions of drawn labels."""

    counts: Counts  # [K], samples with each drawn label
    sums: Counts  # [K, K], of the probability of class k (column) over samples with drawn label j (row), times ``ONE``

    @classmethod
    def of(cls, drawn: Labels, probabilities: Array) -> Self:
        """The sums over samples with ``drawn`` labels [n] and ``probabilities`` [n, K]."""
        classes = probabilities.shape[1]
        sums = np.zeros((classes, classes), np.int64)
        np.add.at(sums, drawn, fixed_point(probabilities))
        return cls(np.bincount(drawn, minlength=classes).astype(np.int64), sums)

    def __add__(self, other: RandomisedSums) -> RandomisedSums:
        return RandomisedSums(self.counts + other.counts, self.sums + other.sums)

    def recovered_counts(self, response: RandomisedResponse) -> Array:
        """Estimated counts [K] of the given classes; 0 for a class that counts as absent."""
        counts = recovered(response, self.counts)
        return np.where(counts < FEWEST, 0.0, counts)

    def thresholds(self, response: RandomisedResponse) -> Array:
        """Estimated thresholds [K]."""
        return thresholds_of(self.recovered_counts(response), recovered(response, self.sums / ONE).diagonal())


def recovered(response: RandomisedResponse, totals: Counts | Array) -> Array:
    """Unbiased totals [K] or [K, ...] over given classes, from totals over drawn labels (first axis)."""
    return np.asarray(response.inverse() @ totals)


def recovered_joint(response: RandomisedResponse, joint: Counts) -> Array:
    """Estimated joint counts [K, K] from those by drawn label (rows); negative ones are 0."""
    return np.maximum(recovered(response, joint), 0.0)


def recovered_disagreements(response: RandomisedResponse, agreeing: Counts, samples: Counts) -> Array:
    """Each client's estimated number [C] of samples whose most probable class is not the given one.

    Args:
        response: the randomised response.
        agreeing: samples [C] whose most probable class is the drawn label.
        samples: all samples [C].
    """
    agree = (agreeing - response.other * samples) / response.gap
    return np.clip(samples - agree, 0.0, samples)
