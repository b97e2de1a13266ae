"""Several labels of a sample, by several people: how many there are of each class, and which one is given."""

from typing import Literal

import numpy as np

from flnl.core.images import Indices, Labels
from flnl.core.streams import stream

NOBODY = -1
"""In place of the label that a person has not given."""

Vote = Literal["first", "majority", "random"]
"""Which of several labels of a sample is given: that of the column ``label``; the most frequent one, among equally
frequent ones the first; or a drawn one."""


def counted(labels: Indices, classes: int) -> Indices:
    """How many of ``labels`` [people, N] each class has, [N, classes]; ``NOBODY`` is no label.

    >>> counted(np.array([[0, 1], [0, -1]]), 2).tolist()
    [[2, 0], [0, 1]]
    """
    return np.asarray((labels[:, :, None] == np.arange(classes)).sum(axis=0), np.int64)


def dealt(counts: Indices) -> Indices:
    """Labels [people, N] with ``counts`` [N, classes], of people whom nobody knows: each sample's are in a drawn order.

    So no column stands for a class or for those who agree; there are as many columns as a sample has labels at most.

    >>> counted(dealt(np.array([[2, 0, 1], [0, 1, 0]])), 3).tolist()
    [[2, 0, 1], [0, 1, 0]]
    """
    rng, number = stream(0, "vote"), counts.sum(axis=1)
    labels = np.full((int(number.max(initial=0)), len(counts)), NOBODY, np.int64)
    for n, (row, total) in enumerate(zip(counts, number, strict=True)):
        labels[:total, n] = rng.permutation(np.repeat(np.arange(len(row)), row))
    return labels


def voted(labels: Indices, vote: Vote) -> Labels:
    """The given label [N] of ``labels`` [people, N], of which each sample has one; with ``first``, by the first person.

    >>> voted(np.array([[0, 1, 2], [1, 2, 2], [1, 0, -1]]), "majority").tolist()
    [1, 1, 2]
    """
    if vote == "first" or len(labels) == 1:
        return np.asarray(labels[0], np.int64)
    there = labels != NOBODY
    if vote == "majority":
        times = (labels[:, None] == labels[None]).sum(axis=1) * there  # [people, N], how often each label was given
        best = times.argmax(axis=0)  # the first of equally frequent ones
    else:
        best = np.where(there, stream(0, "vote").random(labels.shape), -1.0).argmax(axis=0)
    return np.asarray(labels[best, np.arange(labels.shape[1])], np.int64)
