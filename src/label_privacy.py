"""FedPeer's communication of labels: each client randomises its labels once, the server recovers their distribution.

A label stays with probability a and becomes each other class with probability b, so that no output tells two labels
apart by more than a factor ``e^ε`` (label differential privacy).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from src.data.dataset import Labels
from src.data.noise.flips import bernoulli, redraw
from src.ranges import Positive, PositiveCount
from src.stored import stored

Array = NDArray[np.float64]
Projection = Literal["simplex", "clip_renorm", "mle"]
PeerDistribution = Literal["global_dp", "global_true", "local", "uniform"]


@dataclass(frozen=True)
class RandomisedResponse:
    """T_DP of K classes: ``a = e^ε / (e^ε + K - 1)`` on the diagonal, ``b = 1 / (e^ε + K - 1)`` off it.

    FedPeer, Sec. 4.1. The paper's ε are ln(4 (K-1)) to two digits, that is a = 0.8.
    """

    epsilon: Positive
    num_classes: PositiveCount

    @property
    def keep(self) -> float:
        """a, the probability that a label stays."""
        return 1 / (1 + (self.num_classes - 1) * math.exp(-self.epsilon))

    @property
    def other(self) -> float:
        """b, the probability of each other class."""
        return math.exp(-self.epsilon) * self.keep

    def matrix(self) -> Array:
        """T [K, K]: rows are what a label is, columns what it becomes. Rows sum to 1, and T is symmetric."""
        return np.full((self.num_classes,) * 2, self.other) + (self.keep - self.other) * np.eye(self.num_classes)

    def inverse(self) -> Array:
        """T⁻¹ [K, K], in closed form: ``(I - b 11') / (a - b)``."""
        ones = np.ones((self.num_classes,) * 2)
        return (np.eye(self.num_classes) - self.other * ones) / (self.keep - self.other)

    def randomised(self, labels: Labels, rng: np.random.Generator) -> Labels:
        """Labels [n] drawn from the rows of T. Once a client: each further draw costs another ε."""
        changed = bernoulli(len(labels), 1 - self.keep, rng)
        return redraw(labels, changed, np.arange(self.num_classes), rng, include_true=False)

    def recovered(self, shares: Array) -> Array:
        """``(T')⁻¹ p̌ = (p̌ - b) / (a - b)`` [K], from the shares p̌ [K] of the randomised labels.

        It sums to 1. An entry is negative exactly where its share is below b.
        """
        return np.asarray((np.asarray(shares, np.float64) - self.other) / (self.keep - self.other))

    def distribution(self, shares: Array, projection: Projection = "simplex") -> Array:
        """A distribution q [K] of the labels, from the shares p̌ [K] of the randomised ones; the paper has none.

        ``simplex``: the distribution nearest to the recovered vector. ``clip_renorm``: its negative entries are set to
        0, the others divided by their sum. ``mle``: the q under which the randomised labels are likeliest. The three
        agree where nothing is negative.
        """
        if projection == "mle":
            return self._likeliest(np.asarray(shares, np.float64))
        found = self.recovered(shares)
        if projection == "simplex":
            return nearest_distribution(found)
        clipped = np.maximum(found, 0.0)
        return np.asarray(clipped / clipped.sum())

    def _likeliest(self, shares: Array) -> Array:
        """argmax_q Σ_j p̌_j log(b + (a-b) q_j): ``q_j = max(0, p̌_j / λ - c)`` with c = b / (a-b) and λ for Σ q = 1."""
        c = self.other / (self.keep - self.other)
        ordered = np.sort(shares)[::-1]
        level = np.cumsum(ordered) / (1 + c * np.arange(1, len(ordered) + 1))  # λ, were so many of the largest positive
        last = np.flatnonzero(ordered > c * level)[-1]
        return np.asarray(np.maximum(0.0, shares / level[last] - c))

    def chance_of_negative(self, share: float, count: int) -> float:
        """Probability that a class of true ``share`` is recovered as negative from ``count`` randomised labels.

        By the normal approximation to its count.
        """
        seen = self.other + (self.keep - self.other) * share
        return 0.5 * math.erfc((seen - self.other) / math.sqrt(2 * seen * (1 - seen) / count))


def nearest_distribution(values: Array) -> Array:
    """The Euclidean projection of ``values`` [K] onto the simplex: ``max(0, v - τ)`` with τ for a sum of 1.

    >>> nearest_distribution(np.array([1.2, 0.4, -0.6])).round(12).tolist()
    [0.9, 0.1, 0.0]
    """
    ordered = np.sort(values)[::-1]
    shift = (np.cumsum(ordered) - 1) / np.arange(1, len(ordered) + 1)  # τ, were so many of the largest positive
    last = np.flatnonzero(ordered > shift)[-1]
    return np.asarray(np.maximum(0.0, values - shift[last]))


def peer_distribution(kind: PeerDistribution, *, recovered: Array, given: Array, local: Array) -> Array:
    """The distribution q [K] that a client draws peer labels from.

    ``global_dp``: what the server recovered. ``global_true``: the shares of all given labels, without privacy.
    ``local``: those of the client's own given labels. ``uniform``: all classes alike.
    """
    return {
        "global_dp": recovered,
        "global_true": given,
        "local": local,
        "uniform": np.full(len(given), 1 / len(given)),
    }[kind]


@stored("PrivacySpent")
@dataclass(frozen=True)
class PrivacySpent:
    """ε spent by client. Releases of the same labels add up, whence they are randomised once."""

    epsilon: Mapping[int, float] = field(default_factory=dict)

    def of(self, client: int) -> float:
        """What a client has spent; 0 before its first release."""
        return self.epsilon.get(client, 0.0)

    def released(self, client: int, epsilon: Positive) -> "PrivacySpent":
        """The account after one more release."""
        return PrivacySpent({**self.epsilon, client: self.of(client) + epsilon})

    @property
    def most(self) -> float:
        """What the client that spent most has spent."""
        return max(self.epsilon.values(), default=0.0)
