"""The two steps of label noise: choose samples, and change their labels.

Both read the true labels and return new arrays; flipping in place could flip a changed label back.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flnl.core.images import Indices, Labels
from flnl.core.streams import Draws
from flnl.numerics.rounding import whole

Mask = NDArray[np.bool_]


def bernoulli(n: int, rate: float, rng: Draws) -> Mask:
    """Choose each of ``n`` samples independently with probability ``rate``."""
    return rng.random(n) < rate


def exactly(n: int, count: int, rng: np.random.Generator) -> Mask:
    """Choose ``count`` of ``n`` samples uniformly."""
    picked = np.zeros(n, bool)
    picked[rng.permutation(n)[:count]] = True
    return picked


def choose(
    labels: Labels, rate: float, count: Literal["bernoulli", "exact", "per_class"], rng: np.random.Generator
) -> Mask:
    """Choose samples at ``rate``: each independently, exactly floor(rate n) of all, or that share of every class."""
    if count == "bernoulli":
        return bernoulli(len(labels), rate, rng)
    if count == "exact":
        return exactly(len(labels), whole(rate * len(labels)), rng)
    picked = np.zeros(len(labels), bool)
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        picked[members] = exactly(len(members), whole(rate * len(members)), rng)
    return picked


def redraw(labels: Labels, picked: Mask, space: Indices, rng: Draws, *, include_true: bool) -> Labels:
    """Give the ``picked`` samples a label uniform over ``space`` (ascending), with or without the true one.

    Without the true one, ``space`` must contain all picked labels; if it contains only one label, nothing changes.
    """
    given = labels.copy()
    n = int(np.count_nonzero(picked))
    if include_true:
        given[picked] = space[rng.integers(len(space), size=n)]
    elif len(space) > 1:
        drawn = rng.integers(len(space) - 1, size=n)
        true = np.searchsorted(space, labels[picked])
        given[picked] = space[drawn + (drawn >= true)]
    return given


def remap(labels: Labels, picked: Mask, mapping: Labels) -> Labels:
    """Change the labels of the ``picked`` samples to their class's partner in ``mapping`` [C]."""
    return np.where(picked, mapping[labels], labels)
