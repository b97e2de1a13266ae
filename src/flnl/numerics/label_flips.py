"""The two acts of label noise: choosing samples, and giving them another label.

Both read the true labels and return new arrays; nothing is flipped in place, where a fresh "dog" could be flipped back.
"""

from math import floor
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flnl.core.images import Indices, Labels

Mask = NDArray[np.bool_]


def whole(x: float) -> int:
    """``x`` rounded down, forgiving binary fractions.

    >>> int(100 * 0.29), whole(100 * 0.29)
    (28, 29)
    """
    return floor(x + 1e-9)


def nearest(x: float) -> int:
    """``x`` rounded to the nearest integer, halves up.

    >>> nearest(2.5), nearest(3.5), nearest(500 * 0.37)
    (3, 4, 185)
    """
    return floor(x + 0.5 + 1e-9)


def bernoulli(n: int, rate: float, rng: np.random.Generator) -> Mask:
    """Each of ``n`` samples with probability ``rate``, independently."""
    return rng.random(n) < rate


def exactly(n: int, count: int, rng: np.random.Generator) -> Mask:
    """``count`` of ``n`` samples, every choice equally likely."""
    picked = np.zeros(n, bool)
    picked[rng.permutation(n)[:count]] = True
    return picked


def choose(
    labels: Labels, rate: float, count: Literal["bernoulli", "exact", "per_class"], rng: np.random.Generator
) -> Mask:
    """Samples chosen at ``rate``: each by itself, exactly floor(rate n) of all, or that many of every class."""
    if count == "bernoulli":
        return bernoulli(len(labels), rate, rng)
    if count == "exact":
        return exactly(len(labels), whole(rate * len(labels)), rng)
    picked = np.zeros(len(labels), bool)
    for c in np.unique(labels):
        members = np.flatnonzero(labels == c)
        picked[members] = exactly(len(members), whole(rate * len(members)), rng)
    return picked


def redraw(labels: Labels, picked: Mask, space: Indices, rng: np.random.Generator, *, include_true: bool) -> Labels:
    """The ``picked`` samples take a label uniform over ``space`` (ascending), the true one included or not.

    Without the true one, ``space`` must hold every picked label; with nothing else in it, they stay as they are.
    """
    given = labels.copy()
    n = int(picked.sum())
    if include_true:
        given[picked] = space[rng.integers(len(space), size=n)]
    elif len(space) > 1:
        drawn = rng.integers(len(space) - 1, size=n)
        own = np.searchsorted(space, labels[picked])
        given[picked] = space[drawn + (drawn >= own)]
    return given


def remap(labels: Labels, picked: Mask, mapping: Labels) -> Labels:
    """The ``picked`` samples take their class's partner in ``mapping`` [C]."""
    return np.where(picked, mapping[labels], labels)
