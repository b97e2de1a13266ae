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


def finite(values: Array) -> Array:
    """The values [n] with the largest finite one instead of those that are not finite; 0 if none is finite."""
    values = np.asarray(values, np.float64)
    usable = values[np.isfinite(values)]
    return np.where(np.isfinite(values), values, usable.max() if len(usable) else 0.0)


def alike(values: Array) -> bool:
    """Whether the values [n] are fewer than two, or equal up to rounding."""
    return len(values) < 2 or bool(np.ptp(values) <= 1e-9 * max(1e-9, float(np.abs(values).max())))


def min_max(values: Array) -> Array:
    """``(v - min v) / (max v - min v)`` [n] of the finite values, 0 if they are alike; 1 of those that are not finite.

    >>> min_max(np.array([1.0, 2.0, 5.0, np.inf])).tolist()
    [0.0, 0.25, 1.0, 1.0]
    """
    values = np.asarray(values, np.float64)
    known = np.isfinite(values)
    usable, scaled = values[known], np.ones(len(values))
    scaled[known] = 0.0 if alike(usable) else (usable - usable.min()) / np.ptp(usable)
    return scaled


def label_shares(labels: Labels, num_classes: int) -> Array:
    """The share of each class, [K], among ``labels`` [n].

    Raises:
        ValueError: if there are no labels.
    """
    if len(labels) == 0:
        raise ValueError("there are no labels, so their distribution is undefined")
    return np.bincount(labels, minlength=num_classes) / len(labels)
