"""The client prior: labels of a client with many suspicious ones are more suspicious themselves.

A client sends how many samples it has, and of how many the most probable class is not the given one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit, logit

from flnl.audit.options import PRIOR_WEIGHT
from flnl.core.images import Indices

Array = NDArray[np.float64]

LEAST_RATE = 0.01
LEAST_SCORE = 1e-6


@dataclass(frozen=True, eq=False)
class ClientPrior:
    """Each client's share of disagreements, drawn towards that of all, and what it adds to the log odds of a score."""

    rates: Array  # e [C] in [0.01, 0.99], or everyone's share where clients do not differ
    shift: Array | None  # [C]; None where clients do not differ, or nothing is to be added

    @classmethod
    def of(cls, samples: Indices, disagreements: Indices | Array, weight: float = PRIOR_WEIGHT) -> Self:
        """The prior of clients with ``samples`` [C], all positive, and ``disagreements`` [C].

        With g the share of all, ``v`` the variance of the shares between clients beyond what chance explains, and
        ``κ = g(1-g)/v - 1``: ``e = (x + κ g) / (n + κ)``. To the log odds of a score, ``weight`` times the difference
        between everyone's log odds and the client's is added; nothing if v is 0, there is one client, or the weight is
        0.
        """
        n, x = np.asarray(samples, np.float64), np.asarray(disagreements, np.float64)
        total = n.sum()
        overall = x.sum() / total if total else 0.0
        between = _variance_between(n, x, overall)
        if between <= 0:
            return cls(np.full(len(n), overall), None)
        kappa = max(overall * (1 - overall) / between - 1, 0.0)
        rates = np.clip((x + kappa * overall) / (n + kappa), LEAST_RATE, 1 - LEAST_RATE)
        everyone = np.clip(overall, LEAST_RATE, 1 - LEAST_RATE)
        return cls(rates, weight * (logit(everyone) - logit(rates)) if weight else None)

    def suspicion(self, scores: Array, client: Indices) -> Array:
        """The suspicion scores [n] in [0, 1] of label ``scores`` [n], of the clients at places ``client`` [n]."""
        if self.shift is None:
            return scores
        return np.asarray(expit(logit(within(scores)) + self.shift[client]))

    def score_cuts(self, cuts: Array) -> Array:
        """The cuts [C, m] on the label score that mean, for each client, the ``cuts`` [m] on the suspicion score."""
        if self.shift is None:
            return np.tile(cuts, (len(self.rates), 1))
        return np.asarray(expit(logit(cuts)[None] - self.shift[:, None]))

    def comparable(self, scores: Array) -> Array:
        """Label ``scores`` as they are compared with ``score_cuts``."""
        return scores if self.shift is None else within(scores)


def within(scores: Array) -> Array:
    """Scores with finite log odds."""
    return np.clip(scores, LEAST_SCORE, 1 - LEAST_SCORE)


def _variance_between(n: Array, x: Array, overall: float) -> float:
    """Of the clients' shares, with the part that binomial chance explains taken away."""
    total, clients = n.sum(), len(n)
    spread = total - (n**2).sum() / total if clients > 1 else 0.0
    if spread <= 0:
        return 0.0
    seen = (n * (x / n - overall) ** 2).sum()
    return max(0.0, float((seen - (clients - 1) * overall * (1 - overall)) / spread))
