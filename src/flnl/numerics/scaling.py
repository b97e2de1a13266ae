"""Scores scaled to shares."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from flnl.core.images import Labels
from flnl.core.ranges import Share

Array = NDArray[np.float64]


def quality(values: Sequence[float] | Array, *, floor: Share = 0.0) -> Array:
    """``ρ_n = (d_n - min d) / (max d - min d)`` [N], and ``floor`` at least (FedES, Eq. 11).

    All equal gives 1 for everybody. Without a floor there is always a client of quality 0, which never learns.

    Raises:
        ValueError: for a value that is not finite.

    >>> quality([0.1, 0.3, 0.2]).round(12).tolist()
    [0.0, 1.0, 0.5]
    """
    d = np.asarray(values, np.float64)
    if not np.isfinite(d).all():
        raise ValueError("quality is of finite indicators; leave out clients that have none")
    if len(d) == 0 or np.ptp(d) <= 1e-12 * np.abs(d).max():
        return np.ones(len(d))
    return np.asarray(np.maximum((d - d.min()) / np.ptp(d), floor))


def label_shares(labels: Labels, num_classes: int) -> Array:
    """Share of each class [K] among ``labels`` [n].

    Raises:
        ValueError: if there are no labels.
    """
    if len(labels) == 0:
        raise ValueError("no labels, so no distribution of them")
    return np.bincount(labels, minlength=num_classes) / len(labels)
