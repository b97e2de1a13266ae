"""Expected precision of suspects, without the truth: clean test samples show how right labels score.

With F the share of test samples that a cut marks, and k of a client's N samples marked, right labels among them are
expected to be ``F (N - k) / (1 - F)``. Training samples were seen by the model, so their right labels look better than
those of the test set, and the number tends to be too low.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flnl.audit.prior import ClientPrior
from flnl.core.images import Indices

Array = NDArray[np.float64]

CUTS = np.arange(101) / 100
"""Cuts on the suspicion score for which the expected precision is tabulated."""
Z = 1.959963984540054
"""Two-sided 95 % quantile of the normal distribution."""


def expected_precision(test_share: Array, samples: Indices | Array, marked: Indices | Array) -> float | None:
    """The expected share of wrong labels among marked samples, in [0, 1]; None if none is marked.

    Args:
        test_share: share [C] of test samples that each client's cut marks.
        samples: each client's samples [C].
        marked: those of them [C] that are marked.
    """
    total = float(np.sum(marked))
    if total == 0:
        return None
    return min(max(1 - expected_false(test_share, samples, marked) / total, 0.0), 1.0)


def expected_false(test_share: Array, samples: Indices | Array, marked: Indices | Array) -> float:
    """The expected number of right labels among marked samples; infinite if a cut marks all test samples."""
    if np.any(test_share >= 1):
        return math.inf
    return float((test_share * (samples - marked) / (1 - test_share)).sum())


def largest_cut(false: Sequence[float], marked: Sequence[int], least: float, cuts: Array = CUTS) -> float:
    """The largest of ``cuts`` [m] below which the expected precision is at least ``least``; 0 if none is.

    A larger cut marks no fewer right labels than a smaller one. Their expected number may fall where nearly all samples
    are marked, since few are left to estimate from; there, the largest number of a smaller cut counts.

    Args:
        false: the expected number of right labels [m] below each cut.
        marked: the number of samples [m] below each cut.
        least: the precision to reach.
        cuts: the cuts, ascending.
    """
    enough = 0.0
    for cut, worst, total in zip(cuts.tolist(), np.maximum.accumulate(false).tolist(), marked, strict=True):
        if total and max(1 - worst / total, 0.0) >= least:
            enough = cut
    return enough


def shares_of_test_set(prior: ClientPrior, test_scores: Array, cuts: Array = CUTS) -> Array:
    """The share [C, m] of test samples below the cut that each client's score has for each of ``cuts`` [m]."""
    ordered = np.sort(prior.comparable(test_scores))
    return np.searchsorted(ordered, prior.score_cuts(cuts), side="left") / len(ordered)


def below_cuts(suspicion: Array, client: Indices, clients: int, cuts: Array = CUTS) -> NDArray[np.int64]:
    """Each client's number [C, m] of samples whose suspicion score is below each of ``cuts`` [m], ascending."""
    first, width = first_cuts(suspicion, cuts), len(cuts) + 1
    counts = np.bincount(client * width + first, minlength=clients * width).reshape(clients, width)
    return counts.cumsum(axis=1)[:, :-1].astype(np.int64)


def first_cuts(suspicion: Array, cuts: Array = CUTS) -> NDArray[np.int64]:
    """The position of the first of ``cuts`` [m], ascending, that each suspicion score [n] is below; m if none is.

    >>> first_cuts(np.array([0.0, 0.2, 0.9]), np.array([0.0, 0.2, 0.5])).tolist()
    [1, 2, 3]
    """
    return np.searchsorted(cuts, suspicion, side="right").astype(np.int64)


def wilson(successes: int, trials: int) -> tuple[float, float]:
    """Wilson's 95 % interval of a proportion; (0, 1) without trials.

    >>> [round(end, 3) for end in wilson(45, 50)]
    [0.786, 0.957]
    """
    if trials == 0:
        return 0.0, 1.0
    share, z2 = successes / trials, Z**2
    centre = share + z2 / (2 * trials)
    half = Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials**2))
    return max(0.0, (centre - half) / (1 + z2 / trials)), min(1.0, (centre + half) / (1 + z2 / trials))
