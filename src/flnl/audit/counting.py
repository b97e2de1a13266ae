"""Messages of the two rounds in which clients estimate their label noise together, and what the server makes of them.

A client sends sums over its samples only. They are int64, probabilities multiplied by ``2**32`` and rounded, so the
total is the same to the bit in any order of clients, and fits secure aggregation. The estimate equals the one of the
pooled samples: thresholds and joint are functions of these totals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from flnl.core.images import Labels

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

ONE = 2**32
"""A probability of 1 in a message. Sums of up to ``2**31`` samples fit into int64."""
LEAST_THRESHOLD = 2e-6
ABSENT = 2.0
"""Threshold of a class that no sample was given: no probability reaches it."""
SLACK = 1e-6
"""A probability reaches a threshold from this much below it."""
NOBODY = -1


@dataclass(frozen=True, eq=False)
class ProbabilitySums:
    """A client's message of the first round, or a total of such messages."""

    counts: Counts  # [K], samples given each class
    sums: Counts  # [K], of the probabilities of class k over samples given k, times ``ONE``

    @classmethod
    def of(cls, labels: Labels, probabilities: Array) -> Self:
        """The sums over samples with ``labels`` [n] and ``probabilities`` [n, K]."""
        classes = probabilities.shape[1]
        sums = np.zeros(classes, np.int64)
        np.add.at(sums, labels, fixed_point(probabilities[np.arange(len(labels)), labels]))
        return cls(np.bincount(labels, minlength=classes).astype(np.int64), sums)

    def __add__(self, other: ProbabilitySums) -> ProbabilitySums:
        return ProbabilitySums(self.counts + other.counts, self.sums + other.sums)

    @property
    def thresholds(self) -> Array:
        """The mean probability [K] of each class over the samples given it, at least 2e-6; 2 for an absent class."""
        return thresholds_of(self.counts.astype(np.float64), self.sums / ONE)


def fixed_point(probabilities: Array) -> Counts:
    """Probabilities as multiples of ``2**-32``."""
    return np.rint(probabilities * ONE).astype(np.int64)


def thresholds_of(counts: Array, sums: Array) -> Array:
    """Thresholds [K] from the counts [K] of given classes and the sums [K] of their probabilities."""
    present = counts > 0
    means = sums / np.where(present, counts, 1.0)
    return np.where(present, np.maximum(means, LEAST_THRESHOLD), ABSENT)


def confident_class(probabilities: Array, thresholds: Array) -> Labels:
    """The class [n] that each sample seems to have, or ``NOBODY``.

    It is the only class whose threshold the sample's probability reaches; if it reaches several, its most probable
    class, the lowest of equal ones.
    """
    reached = probabilities >= thresholds - SLACK
    many = reached.sum(axis=1)
    only = np.where(many == 1, reached.argmax(axis=1), NOBODY)
    return np.where(many > 1, probabilities.argmax(axis=1), only).astype(np.int64)


def joint_counts(labels: Labels, confident: Labels, classes: int) -> Counts:
    """A client's message of the second round: samples [K, K] by given class (row) and confident class (column)."""
    counted = confident != NOBODY
    cells = labels[counted] * classes + confident[counted]
    return np.bincount(cells, minlength=classes**2).reshape(classes, classes).astype(np.int64)
