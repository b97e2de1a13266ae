"""Chooses between the probabilities of a run by how they rank test labels that were spoiled on purpose.

A network that learns slowly ranks better by late models, one that memorises wrong labels by early ones. The test set,
whose labels are taken to be right, tells without any label of a client: a fifth of its labels are changed to another
class, uniformly, and the probabilities whose scores rank these first are taken. The noise of the clients is not
imitated: where the models are bad, so is the estimate of it.

No model has seen the test set, so that it does not show what models have memorised of the clients' labels. Later models
look better on it than they are, and are taken only if they are ahead by more than a margin.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flnl.audit.options import Score
from flnl.audit.scores import label_scores
from flnl.core.images import Labels
from flnl.core.streams import stream
from flnl.evaluation.label_audit import average_precision

SPOILED = 0.2
"""Share of the test labels that a draw spoils."""
DRAWS = 10
MARGIN = 0.01
"""By how much the average precision of later models has to be higher."""
ENOUGH = 200
"""Test samples below which nothing is compared."""

Rows = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Compared:
    """How probabilities do on the test set."""

    name: str  # window, all or final
    accuracy: float  # share of test samples whose most probable class is their label
    average_precision: float  # of the ranking of spoiled labels, the mean over draws


@dataclass(frozen=True)
class Choice:
    """The probabilities that were taken, and why."""

    taken: str
    compared: tuple[Compared, ...]  # those of early models first; empty if nothing was compared
    spoiled: float  # share of test labels
    draws: int
    reason: str  # in words


def choose(candidates: Mapping[str, Rows], labels: Labels, score: Score, seed: int, times: int = 1) -> Choice:
    """Take what ranks spoiled labels best, later candidates only if ahead by ``MARGIN``; with few samples, the first.

    Args:
        candidates: probabilities [M, K] of the test samples, by name; those of early models first.
        labels: the test labels [M].
        score: ranks the labels.
        seed: of the draws; all candidates see the same ones.
        times: how often each test sample occurs, once for each model that scores it.
    """
    first, classes = next((name, rows.shape[1]) for name, rows in candidates.items())
    if (samples := len(labels) // times) < ENOUGH or classes < 2:
        reason = f"{first} by default: {samples} test samples are too few to compare it with others"
        return Choice(first, (), SPOILED, DRAWS, reason)
    right = {name: label_scores(score, labels, rows.astype(np.float64)) for name, rows in candidates.items()}
    precisions: dict[str, list[float]] = {name: [] for name in candidates}
    for draw in range(DRAWS):
        at, spoiled = _spoiled(labels, classes, seed, draw)
        wrong = np.zeros(len(labels), np.bool_)
        wrong[at] = True
        for name, rows in candidates.items():
            scores = right[name].copy()
            scores[at] = label_scores(score, spoiled, rows[at].astype(np.float64))
            precisions[name].append(average_precision(wrong[np.argsort(scores, kind="stable")]))
    compared = tuple(
        Compared(name, float((rows.argmax(axis=1) == labels).mean()), float(np.mean(precisions[name])))
        for name, rows in candidates.items()
    )
    taken = compared[0]
    for one in compared[1:]:
        if one.average_precision > taken.average_precision + MARGIN:
            taken = one
    return Choice(taken.name, compared, SPOILED, DRAWS, _reason(taken, compared))


def _spoiled(labels: Labels, classes: int, seed: int, draw: int) -> tuple[NDArray[np.int64], Labels]:
    """Which of ``labels`` [M] a draw spoils, and by which other classes."""
    random = stream(seed, "audit choice", draw)
    at = random.permutation(len(labels))[: round(SPOILED * len(labels))]
    return at, (labels[at] + random.integers(1, classes, len(at))) % classes


def _reason(taken: Compared, compared: tuple[Compared, ...]) -> str:
    best = max(compared, key=lambda one: one.average_precision)
    ahead = best.average_precision > taken.average_precision
    how = f"about as well as {best.name}, which has later models" if ahead else "best"
    each = ", ".join(f"{one.name} {one.average_precision:.3f} ({100 * one.accuracy:.1f} %)" for one in compared)
    return (
        f"on the test set {taken.name} finds labels that were spoiled on purpose {how}: average precision (and "
        f"accuracy) {each}"
    )
