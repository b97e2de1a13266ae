"""Filters: which labels are issues.

A filter is a rule that a client can apply to a sample alone, given what the server has pooled: thresholds, or cuts.
Equal values at a cut are taken by client, then by position.

A server would find a cut by bisection: clients answer how many of their values lie below a number, and it adds the
answers. Here all samples are in one place, and ``rule_of`` finds the same cut from blocks of them, in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol, assert_never

import numpy as np
from numpy.typing import NDArray

from flnl.audit.counting import NOBODY, Counts, confident_class
from flnl.audit.joint import rounded
from flnl.audit.options import Filter, Score
from flnl.audit.scores import label_scores
from flnl.core.images import Indices, Labels

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
Blocks = Callable[[], Iterator[tuple[Indices, Labels, Array]]]
"""Blocks of consecutive samples: their indices [n], labels [n] and probabilities [n, K]."""

CLOSE = 1e-6
"""A label whose probability comes this close to the largest one is no issue."""
Pruning = Literal["prune_by_class", "prune_by_noise_rate", "both"]


class Rule(Protocol):
    """Marks issues among samples that it sees one by one."""

    def __call__(self, labels: Labels, probabilities: Array, index: Indices | None = None) -> Mask:
        """Whether each of the samples is an issue [n].

        ``index`` [n] are their places among all training samples, which decide between values equal to a cut; samples
        of a test set have none, and are issues from the cut on.
        """


@dataclass(frozen=True)
class Disagreement:
    """The most probable class is another one."""

    def __call__(self, labels: Labels, probabilities: Array, index: Indices | None = None) -> Mask:
        """Apply the rule."""
        return np.asarray((probabilities.argmax(axis=1) != labels) & ~close(labels, probabilities))


@dataclass(frozen=True, eq=False)
class OffDiagonal:
    """The confident joint counts the sample in another class."""

    thresholds: Array  # [K]

    def __call__(self, labels: Labels, probabilities: Array, index: Indices | None = None) -> Mask:
        """Apply the rule."""
        confident = confident_class(probabilities, self.thresholds)
        return np.asarray((confident != NOBODY) & (confident != labels) & ~close(labels, probabilities))


@dataclass(frozen=True)
class Cut:
    """The samples of lowest value: those below ``value``, and of those equal to it the ones up to place ``last``."""

    value: float = -np.inf
    last: int = -1

    def below(self, values: Array, index: Indices | None) -> Mask:
        """Whether each of ``values`` [n] is among the lowest."""
        if index is None:
            return np.asarray(values <= self.value)
        return np.asarray((values < self.value) | ((values == self.value) & (index <= self.last)))


NOTHING = Cut()


@dataclass(frozen=True, eq=False)
class LowScore:
    """The samples of lowest score among all."""

    score: Score
    cut: Cut

    def __call__(self, labels: Labels, probabilities: Array, index: Indices | None = None) -> Mask:
        """Apply the rule."""
        return self.cut.below(label_scores(self.score, labels, probabilities), index)


@dataclass(frozen=True, eq=False)
class LowInClass:
    """The samples of lowest self-confidence among those given their class."""

    cuts: dict[int, Cut]  # by given class

    def __call__(self, labels: Labels, probabilities: Array, index: Indices | None = None) -> Mask:
        """Apply the rule."""
        issue = np.zeros(len(labels), np.bool_)
        for given, cut in self.cuts.items():
            at = np.flatnonzero(labels == given)
            issue[at] = cut.below(probabilities[at, given], None if index is None else index[at])
        return issue & ~close(labels, probabilities)


@dataclass(frozen=True, eq=False)
class LowInPair:
    """The samples with the largest gap p[other] - p[given] among those given their class."""

    cuts: dict[tuple[int, int], Cut]  # by given and other class, on p[given] - p[other]

    def __call__(self, labels: Labels, probabilities: Array, index: Indices | None = None) -> Mask:
        """Apply the rule."""
        issue = np.zeros(len(labels), np.bool_)
        members = {given: np.flatnonzero(labels == given) for given in {given for given, _ in self.cuts}}
        for (given, other), cut in self.cuts.items():
            at = members[given]
            gap = probabilities[at, given] - probabilities[at, other]
            issue[at] |= cut.below(gap, None if index is None else index[at])
        return issue & ~close(labels, probabilities)


@dataclass(frozen=True, eq=False)
class Both:
    """What two rules mark."""

    first: Rule
    second: Rule

    def __call__(self, labels: Labels, probabilities: Array, index: Indices | None = None) -> Mask:
        """Apply both rules."""
        return self.first(labels, probabilities, index) & self.second(labels, probabilities, index)


def close(labels: Labels, probabilities: Array) -> Mask:
    """Whether the given label is the most probable class, or would be with 1e-6 more."""
    raised = probabilities.copy()
    raised[np.arange(len(labels)), labels] += CLOSE
    return np.asarray(raised.argmax(axis=1) == labels)


def rule_of(name: Filter, blocks: Blocks, thresholds: Array, calibrated: Counts, off_diagonal: int) -> Rule:
    """The rule of a filter, from all samples.

    Args:
        name: the filter.
        blocks: gives the blocks of all samples; it is called at most once.
        thresholds: pooled thresholds [K].
        calibrated: the calibrated joint [K, K]; rows are given classes.
        off_diagonal: the number of ``confident_learning`` issues.
    """
    match name:
        case "predicted_neq_given":
            return Disagreement()
        case "confident_learning":
            return OffDiagonal(thresholds)
        case "low_self_confidence":
            return _low_score("self_confidence", blocks, off_diagonal)
        case "low_normalized_margin":
            return _low_score("normalized_margin", blocks, off_diagonal)
        case "prune_by_class" | "prune_by_noise_rate" | "both":
            return _pruning(name, blocks, calibrated)
        case _:
            assert_never(name)


def _low_score(score: Score, blocks: Blocks, count: int) -> LowScore:
    """The ``count`` samples of lowest score."""
    lowest = Lowest(count)
    for index, labels, probabilities in blocks():
        lowest.add(label_scores(score, labels, probabilities), index)
    return LowScore(score, lowest.cut)


def _pruning(name: Pruning, blocks: Blocks, calibrated: Counts) -> Rule:
    """As many samples of each class, or of each pair of classes, as the joint estimates to be wrong."""
    counts = pruned_counts(calibrated.T)
    given_counts = calibrated.sum(axis=1)
    prunable = [k for k in range(len(counts)) if given_counts[k] > 1]
    by_class, by_pair = dict[int, Lowest](), dict[tuple[int, int], Lowest]()
    if name != "prune_by_noise_rate":
        by_class = {k: Lowest(int(given_counts[k] - counts[k, k])) for k in prunable}
    if name != "prune_by_class":
        by_pair = {
            (k, j): Lowest(int(counts[j, k])) for k in prunable for j in np.flatnonzero(counts[:, k]).tolist() if j != k
        }
    for index, labels, probabilities in blocks():
        members = {k: np.flatnonzero(labels == k) for k in prunable}
        for k, lowest in by_class.items():
            lowest.add(probabilities[members[k], k], index[members[k]])
        for (k, j), lowest in by_pair.items():
            lowest.add(probabilities[members[k], k] - probabilities[members[k], j], index[members[k]])
    in_class = LowInClass({k: lowest.cut for k, lowest in by_class.items()})
    in_pair = LowInPair({pair: lowest.cut for pair, lowest in by_pair.items()})
    match name:
        case "prune_by_class":
            return in_class
        case "prune_by_noise_rate":
            return in_pair
        case "both":
            return Both(in_class, in_pair)


@dataclass
class Lowest:
    """Finds the cut that has the ``count`` lowest of the values added so far below it."""

    count: int
    _values: Array = field(default_factory=lambda: np.zeros(0))
    _index: Indices = field(default_factory=lambda: np.zeros(0, np.int64))

    def add(self, values: Array, index: Indices) -> None:
        """Take ``values`` [n] of the samples at places ``index`` [n], ascending and beyond all before."""
        if self.count < 1:
            return
        values, index = np.concatenate([self._values, values]), np.concatenate([self._index, index])
        if len(values) > self.count:
            kept = np.sort(np.argsort(values, kind="stable")[: self.count])
            values, index = values[kept], index[kept]
        self._values, self._index = values, index

    @property
    def cut(self) -> Cut:
        """The cut; nothing is below it where nothing was asked for."""
        if not len(self._values):
            return NOTHING
        highest = self._values.max()
        return Cut(float(highest), int(self._index[self._values == highest].max()))


def pruned_counts(joint: Counts, at_least: int = 1) -> Counts:
    """Samples to mark [K, K], rows seemingly true classes, columns given ones, with enough left on the diagonal.

    Args:
        joint: the calibrated joint, transposed.
        at_least: smallest diagonal entry. What one is raised by is taken from the other entries of its column, evenly.
    """
    diagonal = np.maximum(joint.diagonal(), at_least).astype(np.float64)
    others = np.maximum(np.count_nonzero(joint, axis=0) - 1, 1)
    kept = np.maximum(joint - (diagonal - joint.diagonal()) / others, 0.0)
    np.fill_diagonal(kept, diagonal)
    return np.stack([rounded(row) for row in np.trunc(kept)])
