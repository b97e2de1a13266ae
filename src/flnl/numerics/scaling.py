"""Scaling of scores to [0, 1], and class shares."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flnl.core.images import Labels
from flnl.core.ranges import Share

Array = NDArray[np.float64]


def quality(values: Sequence[float] | Array, *, floor: Share = 0.0) -> Array:
    """``ρ_n = (d_n - min d) / (max d - min d)`` [N], but at least ``floor`` (FedES, Eq. 11).

    Equal values all give 1. Without a floor, some client always has quality 0 and never learns.

    Raises:
        ValueError: for a value that is not finite.

    >>> quality([0.1, 0.3, 0.2]).round(12).tolist()
    [0.0, 1.0, 0.5]
    """
    d = np.asarray(values, np.float64)
    if not np.isfinite(d).all():
        raise ValueError("quality needs finite indicators; leave out clients without one")
    if len(d) == 0 or np.ptp(d) <= 1e-12 * np.abs(d).max():
        return np.ones(len(d))
    return np.asarray(np.maximum((d - d.min()) / np.ptp(d), floor))


def label_shares(labels: Labels, num_classes: int) -> Array:
    """The share of each class, [K], among ``labels`` [n].

    Raises:
        ValueError: if there are no labels.
    """
    if len(labels) == 0:
        raise ValueError("there are no labels, so their distribution is undefined")
    return np.bincount(labels, minlength=num_classes) / len(labels)
