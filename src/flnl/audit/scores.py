"""Scores of labels, in [0, 1]: the lower, the more suspicious (Northcutt et al., 2021; Kuan and Mueller, 2022)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import assert_never

import numpy as np
from numpy.typing import NDArray

from flnl.audit.options import Score
from flnl.core.images import Labels

Array = NDArray[np.float64]

CERTAIN = 1e-6
"""Weighted entropy below which a model counts as certain of a label."""


@dataclass(frozen=True, eq=False)
class Scoring:
    """A way to score labels."""

    score: Score
    thresholds: Array | None = None  # [K], to adjust the probabilities by; None for probabilities as they are

    def __call__(self, labels: Labels, probabilities: Array) -> Array:
        """The score [n] of each of ``labels`` [n] under its ``probabilities`` [n, K]."""
        used = probabilities if self.thresholds is None else adjusted(probabilities, self.thresholds)
        return label_scores(self.score, labels, used)


def label_scores(score: Score, labels: Labels, probabilities: Array) -> Array:
    """The score [n] of each of ``labels`` [n] under its ``probabilities`` [n, K].

    - ``self_confidence``: the probability p[y] of the label.
    - ``normalized_margin``: (p[y] - max of the others + 1) / 2; below 0.5, another class is likelier.
    - ``confidence_weighted_entropy``: with ``x = H / p[y]``, H the entropy of p divided by ln K, ``ln(1 + x) / x``. Its
      limits are 1 for x towards 0, a label of which the model is certain, and 0 where p[y] is. cleanlab 2.9 gives 0 to
      the former, and by its floor of 1e-6 under p[y] nearly 1 to labels of which the model is certain that they are
      wrong.
    """
    given = probabilities[np.arange(len(labels)), labels]
    match score:
        case "self_confidence":
            return given
        case "normalized_margin":
            return (given - _best_other(labels, probabilities) + 1) / 2
        case "confidence_weighted_entropy":
            return _weighted_entropy(given, probabilities)
        case _:
            assert_never(score)


def adjusted(probabilities: Array, thresholds: Array) -> Array:
    """Probabilities [n, K] less each class's threshold, shifted to be non-negative, divided by their sum.

    A class that the model predicts with more confidence in general then counts no more than others.
    """
    shifted = probabilities - thresholds + thresholds.max()
    return np.asarray(shifted / shifted.sum(axis=1, keepdims=True))


def ranks(score: Array) -> NDArray[np.int64]:
    """The rank [n] of each score, 0 for the lowest; equal scores in their order.

    >>> ranks(np.array([0.3, 0.1, 0.3])).tolist()
    [1, 0, 2]
    """
    rank = np.empty(len(score), np.int64)
    rank[np.argsort(score, kind="stable")] = np.arange(len(score))
    return rank


def _weighted_entropy(given: Array, probabilities: Array) -> Array:
    logs = np.log(probabilities, out=np.zeros_like(probabilities), where=probabilities > 0)
    entropy = -(probabilities * logs).sum(axis=1) / np.log(probabilities.shape[1])
    with np.errstate(over="ignore"):
        weighted = np.divide(entropy, given, out=np.full_like(given, np.inf), where=given > 0)
    x = np.clip(weighted, CERTAIN, np.finfo(np.float64).max)
    return np.where(weighted < CERTAIN, 1.0, np.where(np.isinf(weighted), 0.0, np.log1p(x) / x))


def _best_other(labels: Labels, probabilities: Array) -> Array:
    others = probabilities.copy()
    others[np.arange(len(labels)), labels] = -np.inf
    return np.asarray(others.max(axis=1))
