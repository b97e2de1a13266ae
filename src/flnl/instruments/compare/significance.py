"""Paired tests of two rows over the seeds that both have, and Holm's correction over several comparisons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeVar

import numpy as np
from scipy.stats import rankdata, ttest_1samp

from flnl.numerics import moments

LEVEL = 0.05
"""Significance level."""
DECIMALS = 9
"""Decimals to which differences are compared: equal ones may differ in their last bits."""

K = TypeVar("K")


@dataclass(frozen=True)
class Paired:
    """The differences of two rows, of each draw (seed and data seed) that both have; two-sided tests that they are 0.

    A test is None if it says nothing: of fewer than two pairs; the t test of equal differences, whose deviation is 0.
    """

    differences: tuple[float, ...]

    @classmethod
    def of(cls, one: Mapping[K, float], other: Mapping[K, float]) -> Paired:
        """The differences ``one - other`` over the keys of both."""
        return cls(tuple(round(one[key] - other[key], DECIMALS) for key in one if key in other))

    @property
    def mean(self) -> float | None:
        """The mean difference; None without a pair."""
        return moments.mean(self.differences)

    @property
    def deviation(self) -> float | None:
        """The sample standard deviation of the differences (ddof=1); None of fewer than two."""
        return moments.deviation(self.differences)

    @cached_property
    def t(self) -> float | None:
        """The p-value of the paired t test; 1 if all differences are 0."""
        if len(self.differences) < 2:
            return None
        if len(set(self.differences)) == 1:
            return None if any(self.differences) else 1.0
        return float(ttest_1samp(self.differences, 0.0).pvalue)

    @cached_property
    def wilcoxon(self) -> float | None:
        """The p-value of Wilcoxon's signed-rank test, of the differences that are not 0; 1 if all are 0."""
        if len(self.differences) < 2:
            return None
        apart = [difference for difference in self.differences if difference]
        if len(apart) < 2:  # of a single one, both arrangements are as extreme
            return 1.0
        return _signed_rank(apart)


def _signed_rank(differences: Sequence[float]) -> float:
    """The exact two-sided p-value of the signed-rank test of differences other than 0, also with ties.

    All signs are equally likely, so the shares of the sums of positive ranks follow rank by rank.
    """
    twice = np.rint(2 * rankdata(np.abs(differences))).astype(int)  # mean ranks of ties are halves
    shares = np.zeros(twice.sum() + 1)
    shares[0] = 1.0
    for rank in twice:
        shifted = np.zeros_like(shares)
        shifted[rank:] = shares[:-rank]
        shares = (shares + shifted) / 2
    positive = int(twice[np.asarray(differences) > 0].sum())
    return float(min(1.0, 2 * min(shares[: positive + 1].sum(), shares[positive:].sum())))


def least(pairs: int) -> float:
    """The least p-value that Wilcoxon's two-sided test can have: all differences of one sign, 2 of 2^n arrangements.

    >>> least(3), least(6)
    (0.25, 0.03125)
    """
    return min(1.0, 2.0 ** (1 - pairs))


def fewest(comparisons: int) -> int:
    """The fewest pairs with which Wilcoxon's test can be significant, with Holm's correction over comparisons.

    >>> fewest(1), fewest(4)
    (6, 8)
    """
    return next(pairs for pairs in range(2, 100) if comparisons * least(pairs) < LEVEL)


def holm(values: Sequence[float | None]) -> list[float | None]:
    """The p-values with Holm's correction over all that are there (Holm, Scand. J. Statist. 1979).

    >>> holm([0.01, None, 0.04, 0.03])
    [0.03, None, 0.06, 0.06]
    """
    order = sorted((p, place) for place, p in enumerate(values) if p is not None)
    adjusted: list[float | None] = [None] * len(values)
    highest = 0.0
    for rank, (p, place) in enumerate(order):
        highest = max(highest, min(1.0, (len(order) - rank) * p))
        adjusted[place] = highest
    return adjusted
