"""What a confident joint says of label noise: calibrated counts, noise matrices and class shares.

Rows of a joint are given classes, columns the classes that the labels seem to have.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flnl.audit.counting import Counts

Array = NDArray[np.float64]

TINY = 1e-100
"""Smallest divisor."""
LARGEST_RATE = 0.9999
"""Largest share of one class that may have the label of another."""


def with_diagonal(counts: Counts | Array) -> Counts | Array:
    """The joint counts [K, K] with every diagonal entry below 1 raised to 1."""
    raised = counts.copy()
    np.fill_diagonal(raised, np.maximum(counts.diagonal(), 1))
    return raised


def calibrated(joint: Counts | Array, counts: Counts | Array) -> Counts:
    """The joint [K, K] scaled to as many samples as were given each class (``counts`` [K]), in whole numbers.

    The row of an absent class becomes 0.
    """
    # Operations and the sum (by columns) are in cleanlab's order: equal fractions are told apart by their last bits.
    rows = joint.sum(axis=1)
    scaled = (np.asfortranarray(joint).T / np.where(rows > 0, rows, 1) * np.asarray(counts)).T
    scaled = scaled / max(scaled.sum(), TINY) * np.sum(counts)
    return np.stack([rounded(row) for row in scaled])


def rounded(values: Array) -> Counts:
    """Whole numbers [K] near ``values`` [K] with the same sum, itself rounded.

    Values are rounded half to even. If the sum is off, entries whose rounding took most are raised by 1, or those whose
    rounding gave most are lowered by 1; of equal ones the highest index is raised, the lowest lowered.

    >>> rounded(np.array([10 / 3, 10 / 3, 10 / 3])).tolist()
    [3, 3, 4]
    """
    whole = np.rint(values)
    while off := int(np.rint(values.sum()) - whole.sum()):
        taken = np.argsort(values - whole, kind="stable")
        chosen = taken[-off:] if off > 0 else taken[:-off]
        whole[chosen] += np.sign(off)
    return whole.astype(np.int64)


def estimated_issues(joint: Counts) -> int:
    """The number of wrong labels that a calibrated joint estimates: all but its diagonal."""
    return int(joint.sum() - joint.trace())


@dataclass(frozen=True, eq=False)
class Latent:
    """Estimates about the true classes."""

    prior: Array  # [K], share of each true class
    noise: Array  # [K, K], probability of a given class (row) for each true class (column)
    inverse_noise: Array  # [K, K], probability of a true class (row) for each given class (column)


def latent(joint: Counts, counts: Counts | Array) -> Latent:
    """Estimates from the calibrated ``joint`` [K, K] and the samples given each class, ``counts`` [K].

    Shares of true classes are from the diagonals of both matrices and the shares of given classes; at least 1e-6.
    """
    given = np.asarray(counts, np.float64) / max(float(np.sum(counts)), TINY)
    noise = joint / np.maximum(joint.sum(axis=0), TINY)
    inverse = joint.T / np.maximum(joint.sum(axis=1), TINY)
    shares = np.clip(inverse.diagonal() / np.maximum(noise.diagonal(), TINY) * given, 1e-6, 1.0)
    return Latent(shares / shares.sum(), valid_rates(noise), valid_rates(inverse))


def valid_rates(matrix: Array) -> Array:
    """The matrix with entries off the diagonal in [0, 0.9999], its columns divided by their sums."""
    clipped = np.clip(matrix, 0.0, LARGEST_RATE)
    np.fill_diagonal(clipped, matrix.diagonal())
    return np.asarray(clipped / np.maximum(clipped.sum(axis=0), TINY))
