"""Randomised response: labels are randomised on the client, the server recovers sums over the true ones.

A label stays with probability a and becomes each other class with probability b, so the probabilities of an output
under any two labels differ by at most a factor ``e^ε`` (label differential privacy).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from flnl.core.images import Labels
from flnl.core.ranges import PositiveCount
from flnl.core.streams import Draws
from flnl.numerics.label_flips import bernoulli, redraw

Array = NDArray[np.float64]
Projection = Literal["simplex", "clip_renorm", "mle"]

Epsilon = Annotated[float, Ge(np.finfo(np.float64).eps)]
"""ε of label privacy. Below the limit, ``e^ε`` rounds to 1 in float64: a = b, and outputs carry no information."""


@dataclass(frozen=True)
class RandomisedResponse:
    """T_DP of K classes: ``a = e^ε / (e^ε + K - 1)`` on the diagonal, ``b = 1 / (e^ε + K - 1)`` off it.

    FedPeer, Sec. 4.1. The paper's ε are ln(4 (K-1)) to two digits, that is a = 0.8.
    """

    epsilon: Epsilon
    num_classes: PositiveCount

    @property
    def keep(self) -> float:
        """a, the probability that a label stays."""
        return 1 / (1 + (self.num_classes - 1) * math.exp(-self.epsilon))

    @property
    def other(self) -> float:
        """b, the probability of each other class."""
        return math.exp(-self.epsilon) * self.keep

    @property
    def gap(self) -> float:
        """``a - b``, computed without cancellation for small ε."""
        return -math.expm1(-self.epsilon) * self.keep

    def matrix(self) -> Array:
        """T [K, K], from the true label (row) to the randomised one (column). Rows sum to 1; T is symmetric."""
        return np.full((self.num_classes,) * 2, self.other) + self.gap * np.eye(self.num_classes)

    def inverse(self) -> Array:
        """T⁻¹ [K, K] in closed form: ``(I - b 11') / (a - b)``."""
        ones = np.ones((self.num_classes,) * 2)
        return (np.eye(self.num_classes) - self.other * ones) / self.gap

    def randomised(self, labels: Labels, rng: Draws) -> Labels:
        """Labels [n] drawn from the rows of T. Call it once per client: each further draw costs another ε."""
        changed = bernoulli(len(labels), 1 - self.keep, rng)
        return redraw(labels, changed, np.arange(self.num_classes), rng, include_true=False)

    def recovered(self, shares: Array) -> Array:
        """``(T')⁻¹ p̌ = (p̌ - b) / (a - b)`` [K], from the shares p̌ [K] of the randomised labels.

        It sums to 1. An entry is negative exactly where its share is below b.
        """
        return self._above(shares) / self.gap

    def _above(self, shares: Array) -> Array:
        """``p̌ - b`` [K], accurate for small ε.

        There b is written as ``1/K - (e^ε - 1) / (K (e^ε + K - 1))``, so that ε appears in the second term only. Next
        to that term the rounding of the shares matters, so they are first normalised to sum to 1 exactly.
        """
        observed = np.asarray(shares, np.float64)
        if self.epsilon >= 1:
            return observed - self.other
        K, grown = self.num_classes, math.expm1(self.epsilon)
        below = Fraction(grown / (K * (grown + K)))
        exact = [Fraction(p) for p in observed.tolist()]
        total = sum(exact)
        return np.array([float(p / total - Fraction(1, K) + below) for p in exact])

    def distribution(self, shares: Array, projection: Projection = "simplex") -> Array:
        """The distribution q [K] of the labels, from the shares p̌ [K] of the randomised ones.

        The recovered vector may have negative entries, for which the paper has no remedy. ``simplex``: the distribution
        nearest to it. ``clip_renorm``: negative entries are set to 0, the others are divided by their sum. ``mle``: the
        q that maximises the likelihood of the randomised labels. All three agree if no entry is negative.
        """
        if projection == "mle":
            return self._likeliest(np.asarray(shares, np.float64))
        if projection == "simplex":
            return nearest_distribution((np.asarray(shares, np.float64) - np.max(shares)) / self.gap)
        clipped = np.maximum(self._above(shares), 0.0)
        return np.asarray(clipped / clipped.sum())

    def _likeliest(self, shares: Array) -> Array:
        """argmax_q Σ_j p̌_j log(b + (a-b) q_j): ``q_j = max(0, p̌_j / λ - c)`` with c = b / (a-b) and λ for Σ q = 1.

        If the m largest entries, with sum S, are the positive ones, ``q_j = (p̌_j + c (m p̌_j - S)) / S``; this form
        avoids cancellation for large c.
        """
        c = self.other / self.gap
        ordered = np.sort(shares)[::-1]
        many = np.arange(1, len(ordered) + 1)
        total, apart = np.cumsum(ordered), np.cumsum(ordered - ordered[0])  # S, and S - m p̌_1
        last = np.flatnonzero(ordered + c * (many * (ordered - ordered[0]) - apart) > 0)[-1]
        most = many[last] * (shares - ordered[0]) - apart[last]
        return np.asarray(np.maximum(0.0, (shares + c * most) / total[last]))

    def chance_of_negative(self, share: float, count: int) -> float:
        """Probability that a class of true ``share`` is recovered as negative from ``count`` randomised labels.

        Uses the normal approximation of its count.
        """
        rise = self.gap * share
        seen = self.other + rise
        return 0.5 * math.erfc(rise / math.sqrt(2 * seen * (1 - seen) / count))


def nearest_distribution(values: Array) -> Array:
    """The Euclidean projection of ``values`` [K] onto the simplex: ``max(0, v - τ)``, with τ such that the sum is 1.

    Adding a constant to all values does not change the result, so the largest value is shifted to 0 for accuracy.

    >>> nearest_distribution(np.array([1.2, 0.4, -0.6])).round(12).tolist()
    [0.9, 0.1, 0.0]
    """
    values = values - np.max(values)
    ordered = np.sort(values)[::-1]
    shift = (np.cumsum(ordered) - 1) / np.arange(1, len(ordered) + 1)  # τ if the m largest are positive, m = 1, 2, ...
    last = np.flatnonzero(ordered > shift)[-1]
    return np.asarray(np.maximum(0.0, values - shift[last]))
