"""The audit of labels, given their probabilities: scores, pooled estimates, issues, expected precision.

It knows nothing of runs and images, and reads no truth.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Self

import numpy as np
from numpy.typing import NDArray

from flnl.audit.counting import Counts, ProbabilitySums, confident_class, joint_counts
from flnl.audit.filters import Blocks, OffDiagonal, Rule, rule_of
from flnl.audit.joint import calibrated, estimated_issues, latent, with_diagonal
from flnl.audit.label_privacy import RandomisedSums, drawn_labels, recovered_disagreements, recovered_joint
from flnl.audit.options import Options
from flnl.audit.precision import (
    CUTS,
    below_cuts,
    expected_false,
    expected_precision,
    first_cuts,
    largest_cut,
    shares_of_test_set,
)
from flnl.audit.prior import ClientPrior
from flnl.audit.probability_table import ProbabilityTable
from flnl.audit.result import JointEstimate, PrecisionCurve
from flnl.audit.scores import Scoring, ranks
from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels
from flnl.data.owners import called
from flnl.numerics.randomised_response import RandomisedResponse

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]

OUTSIDE, OFF_ONE = 1e-6, 1e-3 + 1e-9
"""How far a probability may lie outside [0, 1], and the sum of a row off 1, with room for the rounding of the sum."""


@dataclass(frozen=True, eq=False)
class LabelledSamples:
    """Samples with their given labels, by client and then by position."""

    client: Indices  # [N]
    name: Sequence[str | int]  # [N]
    given: Labels  # [N]
    client_names: Sequence[str] | None = None  # of all clients by number; None: they are called by their numbers
    people: Indices | None = None  # [A, N], labels by several people, -1 where one gave none; None: one person's

    def __len__(self) -> int:
        return len(self.client)

    @cached_property
    def clients(self) -> Indices:
        """The clients' numbers [C], ascending."""
        return np.unique(self.client)

    @cached_property
    def place(self) -> Indices:
        """The place [N] of each sample's client in ``clients``."""
        return np.searchsorted(self.clients, self.client)

    @cached_property
    def sizes(self) -> Indices:
        """Each client's number of samples [C]."""
        return np.bincount(self.place, minlength=len(self.clients)).astype(np.int64)

    @cached_property
    def owner(self) -> list[str]:
        """What each sample's client is called, [N]."""
        return [called(self.client_names, client) for client in self.client.tolist()]

    def describe(self, i: int) -> str:
        """A sample, for messages."""
        return f"client {self.owner[i]}, sample {self.name[i]}"

    def blocks(self, table: ProbabilityTable) -> Iterator[tuple[Indices, Labels, Array]]:
        """Consecutive samples: their indices [n], labels [n] and probabilities [n, K] in ``table``."""
        start = 0
        for probabilities in table.blocks():
            index = np.arange(start, start + len(probabilities))
            yield index, self.given[index], probabilities
            start += len(probabilities)


@dataclass(frozen=True, eq=False)
class CleanSamples:
    """Test samples, whose labels are taken to be right, under probabilities of the same kind."""

    labels: Labels  # [M]
    probabilities: Array  # [M, K]
    times: int = 1  # how often each sample occurs, once for each model that scores it, one model after the other
    model: Indices | None = None  # [N], which of these models scores each of the clients' samples; None if it is one


@dataclass(frozen=True, eq=False)
class CleanShares:
    """Which shares of the test set would be marked, were its samples a client's own."""

    samples: int  # M, each counted once
    below: Array  # [C, 101], below the cut that each client's score has for each of the curve's cuts
    issues: Array  # [C], as issues of each client


@dataclass(frozen=True, eq=False)
class Pooled:
    """What follows from the messages of all clients; each judges its own samples by it."""

    joint: JointEstimate  # with the thresholds
    prior: ClientPrior  # of the clients whose samples are judged
    cut: float | None = None  # of ``Options.min_precision``; None if it is to be chosen, or there is none


@dataclass(frozen=True, eq=False)
class Assessment:
    """What an audit says of each sample, and of all."""

    predicted: Labels  # [N]
    confident: Labels  # [N]
    label_score: Array  # [N]
    suspicion_score: Array  # [N]
    rank: Indices  # [N]
    is_issue: Mask  # [N]
    joint: JointEstimate
    prior: ClientPrior
    sizes: Indices  # [C], each client's samples
    below: Counts  # [C, 101], those of them below the curve's cuts
    issues: Indices  # [C], those of them that are issues
    clean: CleanShares | None  # None without a test set
    cut: float | None
    cuts: int  # how many of the curve's cuts are of use for the issues before the cut

    @cached_property
    def precision(self) -> PrecisionCurve:
        """The expected precision over all clients."""
        return self.precision_of(slice(None))

    def precision_of(self, clients: slice) -> PrecisionCurve:
        """The expected precision over the samples of some of the C clients."""
        clean = self.clean
        if clean is not None:
            clean = replace(clean, below=clean.below[clients], issues=clean.issues[clients])
        return precision_curve(self.sizes[clients], self.below[clients], self.issues[clients], clean)


def precision_curve(sizes: Indices, below: Counts, issues: Indices, clean: CleanShares | None) -> PrecisionCurve:
    """The expected precision over the samples of C clients.

    Args:
        sizes: each client's samples [C].
        below: those of them below the curve's cuts [C, 101].
        issues: those of them that are issues [C].
        clean: the shares of the test set; None without one.
    """
    expected: list[float | None] = [None] * len(CUTS)
    if clean is not None:
        expected = [expected_precision(clean.below[:, m], sizes, below[:, m]) for m in range(len(CUTS))]
    return PrecisionCurve(
        cuts=tuple(CUTS.tolist()),
        below=tuple(below.sum(axis=0).tolist()),
        expected=tuple(expected),
        test_samples=0 if clean is None else clean.samples,
        of_issues=None if clean is None else expected_precision(clean.issues, sizes, issues),
    )


def assess(
    samples: LabelledSamples,
    table: ProbabilityTable,
    test: CleanSamples | None,
    options: Options,
    secret: bytes | None = None,
) -> Assessment:
    """Audit labels.

    Args:
        samples: the samples.
        table: their probabilities.
        test: clean samples; None if there are none, and so no expected precision.
        options: the scores, filter and prior to use.
        secret: from which labels are drawn for label privacy; None without it.

    Raises:
        UserError: if labels and probabilities do not fit together, or an option needs a test set.
    """
    _check_labels(samples, table.shape)
    _check_test(test, table.shape[1], options)
    counting = _counted(samples, table, options.label_privacy, secret)
    thresholds = counting.thresholds
    scored = scored_by(samples, table, options, thresholds)
    joint = counting.joint(scored.confident, thresholds, scored.off_diagonal)
    prior = prior_of(samples.sizes, counting.disagreements(scored.predicted), options)
    return assessed(samples, table, test, options, Pooled(joint, prior), scored)


def prior_of(sizes: Indices, disagreements: Array, options: Options) -> ClientPrior:
    """The prior of clients with so many samples [C] and disagreements [C]."""
    return ClientPrior.of(sizes, disagreements, options.prior_weight if options.prior == "client" else 0.0)


def assessed(
    samples: LabelledSamples,
    table: ProbabilityTable,
    test: CleanSamples | None,
    options: Options,
    pooled: Pooled,
    scored: Scored,
) -> Assessment:
    """The audit of the samples of all clients, or of some, given what is pooled and how these score."""
    joint, prior, blocks = pooled.joint, pooled.prior, partial(samples.blocks, table)
    rule = rule_of(options.issues, blocks, joint.thresholds, joint.calibrated, joint.off_diagonal)
    marked = _marked(blocks, len(samples), rule)
    suspicion = prior.suspicion(scored.label_score, samples.place)
    below = below_cuts(suspicion, samples.place, len(samples.clients))
    clean = None if test is None else Clean.of(test, scoring_of(options, joint.thresholds), prior)
    cut, cuts = pooled.cut, cuts_of_issues(suspicion[marked])
    if cut is None and clean is not None and options.min_precision is not None:
        cut = clean.largest_cut(samples.sizes, below[:, :cuts], options.min_precision)
    if cut is not None:
        marked &= suspicion < cut
    return Assessment(
        predicted=scored.predicted,
        confident=scored.confident,
        label_score=scored.label_score,
        suspicion_score=suspicion,
        rank=ranks(suspicion),
        is_issue=marked,
        joint=joint,
        prior=prior,
        sizes=samples.sizes,
        below=below,
        issues=np.bincount(samples.place[marked], minlength=len(samples.clients)).astype(np.int64),
        clean=None if clean is None else clean.shares(rule, cut),
        cut=cut,
        cuts=cuts,
    )


# ---------------------------------------------------------------------------------------------- passes over all samples


@dataclass(frozen=True, eq=False)
class Scored:
    """What the probabilities say of each sample's label."""

    label_score: Array  # [N]
    predicted: Labels  # [N]
    confident: Labels  # [N]
    off_diagonal: int  # issues by confident_learning


def scoring_of(options: Options, thresholds: Array) -> Scoring:
    """How labels are scored, given the pooled thresholds [K]."""
    return Scoring(options.score, thresholds if options.adjust else None)


def scored_by(samples: LabelledSamples, table: ProbabilityTable, options: Options, thresholds: Array) -> Scored:
    """What the probabilities say of each label, given the pooled thresholds [K]."""
    scores, off_diagonal = np.empty(len(samples)), 0
    predicted, confident = np.empty((2, len(samples)), np.int64)
    scoring, rule = scoring_of(options, thresholds), OffDiagonal(thresholds)
    for index, labels, probabilities in samples.blocks(table):
        scores[index] = scoring(labels, probabilities)
        predicted[index] = probabilities.argmax(axis=1)
        confident[index] = confident_class(probabilities, thresholds)
        off_diagonal += int(rule(labels, probabilities).sum())
    return Scored(scores, predicted, confident, off_diagonal)


def _marked(blocks: Blocks, samples: int, rule: Rule) -> Mask:
    marked = np.zeros(samples, np.bool_)
    for index, labels, probabilities in blocks():
        marked[index] = rule(labels, probabilities, index)
    return marked


def cuts_of_issues(suspicion: Array) -> int:
    """How many of the curve's cuts are of use for issues [n] of this suspicion.

    A cut above all issues lists no more of them, and says nothing of them: most samples below it are none.
    """
    return int(first_cuts(suspicion.max(keepdims=True))[0]) + 1 if suspicion.size else 1


# -------------------------------------------------------------------------------------------------------- the test set


@dataclass(frozen=True, eq=False)
class Clean:
    """The test set, scored as the clients' samples are."""

    test: CleanSamples
    scores: Array  # [M], comparable with the prior's cuts on the score
    prior: ClientPrior
    below: Array  # [C, 101], as in ``CleanShares``

    @classmethod
    def of(cls, test: CleanSamples, scoring: Scoring, prior: ClientPrior) -> Self:
        """The test set as this ``scoring`` sees it."""
        scores = scoring(test.labels, test.probabilities)
        return cls(test, prior.comparable(scores), prior, shares_of_test_set(prior, scores))

    def largest_cut(self, sizes: Indices, below: Counts, least: float) -> float:
        """The largest cut with an expected precision of at least ``least``; 0 if none has it.

        Args:
            sizes: each client's samples [C].
            below: those of them below the first m cuts of the curve [C, m], among which to choose.
            least: the precision to reach.
        """
        number = below.shape[1]
        false = [expected_false(self.below[:, m], sizes, below[:, m]) for m in range(number)]
        return largest_cut(false, below.sum(axis=0).tolist(), least, CUTS[:number])

    def shares(self, rule: Rule, cut: float | None) -> CleanShares:
        """The shares that are marked, as issues by ``rule`` and, if there is one, below the ``cut``."""
        test, clients = self.test, len(self.prior.rates)
        alike = np.broadcast_to(rule(test.labels, test.probabilities), (clients, len(test.labels)))
        if cut is not None:
            alike = alike & (self.scores < self.prior.score_cuts(np.array([cut])))
        return CleanShares(len(test.labels) // test.times, self.below, alike.mean(axis=1))


# --------------------------------------------------------------------------------------------------------- counting


def probability_sums(samples: LabelledSamples, table: ProbabilityTable) -> ProbabilitySums:
    """The message of the first round about these samples; rows that are no distribution are refused."""
    counting = _counted(samples, table, None, None)
    assert isinstance(counting, _Plain), "without label privacy"
    assert counting.sums is not None, "there are samples"
    return counting.sums


def _counted(
    samples: LabelledSamples, table: ProbabilityTable, epsilon: float | None, secret: bytes | None
) -> _Plain | _Private:
    """The clients' messages of the first round; rows that are no distribution are refused."""
    if epsilon is None:
        counting: _Plain | _Private = _Plain(samples)
    else:
        assert secret is not None, "label privacy rests on a secret"
        counting = _Private(samples, RandomisedResponse(epsilon, table.shape[1]), secret)
    for index, _, probabilities in samples.blocks(table):
        _check_rows(samples, index, probabilities)
        counting.add(index, probabilities)
    return counting


class _Plain:
    """The clients' messages without label privacy; their sums are those over blocks of all samples."""

    def __init__(self, samples: LabelledSamples) -> None:
        self._samples = samples
        self.sums: ProbabilitySums | None = None

    def add(self, index: Indices, probabilities: Array) -> None:
        """Add the samples at ``index`` to the first round."""
        sums = ProbabilitySums.of(self._samples.given[index], probabilities)
        self.sums = sums if self.sums is None else self.sums + sums

    @property
    def thresholds(self) -> Array:
        """The pooled thresholds [K]."""
        assert self.sums is not None, "there are samples"
        return self.sums.thresholds

    def joint(self, confident: Labels, thresholds: Array, off_diagonal: int) -> JointEstimate:
        """The estimates after the second round."""
        assert self.sums is not None, "there are samples"
        counts = joint_counts(self._samples.given, confident, len(thresholds))
        return estimated(self.sums.counts, thresholds, counts, off_diagonal)

    def disagreements(self, predicted: Labels) -> Array:
        """Each client's samples [C] whose most probable class is not the given one."""
        samples = self._samples
        differs = (predicted != samples.given).astype(np.float64)
        return np.bincount(samples.place, weights=differs, minlength=len(samples.clients)).astype(np.float64)


class _Private:
    """The clients' messages under label privacy: functions of labels that each client draws once."""

    def __init__(self, samples: LabelledSamples, response: RandomisedResponse, secret: bytes) -> None:
        self._samples, self._response = samples, response
        parts = [samples.given[samples.place == c] for c in range(len(samples.clients))]
        self._drawn = drawn_labels(response, parts, samples.clients.tolist(), secret)
        self._sums: RandomisedSums | None = None

    def add(self, index: Indices, probabilities: Array) -> None:
        """Add the samples at ``index`` to the first round."""
        sums = RandomisedSums.of(self._drawn[index], probabilities)
        self._sums = sums if self._sums is None else self._sums + sums

    @property
    def thresholds(self) -> Array:
        """The estimated thresholds [K]."""
        assert self._sums is not None, "there are samples"
        return self._sums.thresholds(self._response)

    def joint(self, confident: Labels, thresholds: Array, off_diagonal: int) -> JointEstimate:
        """The estimates after the second round; the number of issues is estimated, too."""
        assert self._sums is not None, "there are samples"
        counts = recovered_joint(self._response, joint_counts(self._drawn, confident, len(thresholds)))
        issues = int(np.rint(counts.sum() - counts.trace()))
        return estimated(self._sums.recovered_counts(self._response), thresholds, counts, issues)

    def disagreements(self, predicted: Labels) -> Array:
        """Each client's estimated samples [C] whose most probable class is not the given one."""
        samples = self._samples
        agreeing = np.bincount(samples.place[predicted == self._drawn], minlength=len(samples.clients))
        return recovered_disagreements(self._response, agreeing, samples.sizes)


def estimated(counts: Counts | Array, thresholds: Array, joint: Counts | Array, off_diagonal: int) -> JointEstimate:
    """The pooled estimates, from the samples [K] of each given class and the joint counts [K, K]."""
    confident = with_diagonal(joint)
    scaled = calibrated(confident, counts)
    hidden = latent(scaled, counts)
    return JointEstimate(
        counts=counts,
        thresholds=thresholds,
        confident=confident,
        calibrated=scaled,
        prior=hidden.prior,
        noise=hidden.noise,
        inverse_noise=hidden.inverse_noise,
        off_diagonal=off_diagonal,
        off_diagonal_calibrated=estimated_issues(scaled),
    )


# --------------------------------------------------------------------------------------------------------- refusals


def _check_labels(samples: LabelledSamples, shape: tuple[int, int]) -> None:
    count, classes = shape
    if count != len(samples):
        raise UserError(
            f"there are probabilities of {count} samples and labels of {len(samples)}; they should be equal"
        )
    if not count:
        raise UserError("there are no samples to audit")
    if classes < 2:
        raise UserError(f"the probabilities are of {classes} class; there should be at least two")
    wrong = np.flatnonzero((samples.given < 0) | (samples.given >= classes))
    if len(wrong):
        first = int(wrong[0])
        raise UserError(
            f"{samples.describe(first)} has label {samples.given[first]}; there are classes 0 to {classes - 1}"
        )


def _check_rows(samples: LabelledSamples, index: Indices, probabilities: Array) -> None:
    if (fault := _fault(probabilities)) is not None:
        row, text = fault
        raise UserError(f"{samples.describe(int(index[row]))}: {text}")


def _check_test(test: CleanSamples | None, classes: int, options: Options) -> None:
    if test is None:
        if options.min_precision is not None:
            raise UserError(
                "--min-precision needs probabilities of the test set, and there are none; leave it out, or add "
                "test_pred_probs to the file"
            )
        return
    if test.probabilities.shape != (len(test.labels), classes):
        raise UserError(
            f"the probabilities of test samples are {list(test.probabilities.shape)}; they should be "
            f"{[len(test.labels), classes]}, samples and classes"
        )
    if (fault := _fault(test.probabilities)) is not None:
        row, text = fault
        raise UserError(f"test sample {row}: {text}")


def _fault(probabilities: Array) -> tuple[int, str] | None:
    """The first row that is not a distribution, and why."""
    valid = (probabilities >= -OUTSIDE) & (probabilities <= 1 + OUTSIDE)  # False for NaN
    sums = probabilities.sum(axis=1)
    wrong = np.flatnonzero(~valid.all(axis=1) | ~(np.abs(sums - 1) <= OFF_ONE))
    if not len(wrong):
        return None
    row = int(wrong[0])
    if np.isnan(probabilities[row]).any():
        return row, (
            "a probability is nan; the model that gave it has probably diverged, so repeat its training with a smaller "
            "learning rate (train.lr)"
        )
    for value in probabilities[row].tolist():
        if not -OUTSIDE <= value <= 1 + OUTSIDE:
            return row, f"a probability is {value:g}; it should be in [0, 1]"
    return row, f"its probabilities sum to {sums[row]:g}; they should sum to 1"
