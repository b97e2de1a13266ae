"""Statistics of ranks: the area under the ROC curve, and Spearman's correlation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


def auroc(scores: Array, positive: Mask) -> float:
    """Probability that a positive scores higher than a negative, ties count half; NaN if one kind is missing.

    It is the area under the ROC curve. For binary flags instead of scores, it is the balanced accuracy.

    >>> auroc(np.array([0.9, 0.5, 0.4, 0.1]), np.array([True, False, True, False]))
    0.75
    """
    positives = int(positive.sum())
    above = float(_ranks(scores)[positive].sum()) - positives * (positives + 1) / 2
    pairs = positives * (len(positive) - positives)
    return above / pairs if pairs else float("nan")


def rank_correlation(rho: Sequence[float] | Array, truth: Sequence[float] | Array) -> float:
    """Spearman's rank correlation, ties at their mean rank; NaN if one side is constant."""
    a, b = (ranks - ranks.mean() for ranks in (_ranks(rho), _ranks(truth)))
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else float("nan")


def _ranks(values: Sequence[float] | Array) -> Array:
    """Ranks from 1, ties at their mean rank."""
    from scipy.stats import rankdata  # not for every run: importing it takes a third of a second

    ranks: Array = rankdata(values)
    return ranks
