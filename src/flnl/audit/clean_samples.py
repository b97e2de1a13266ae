"""A test set, whose labels are taken to be right: what the expected precision of an audit rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import numpy as np

from flnl.audit.counting import Counts
from flnl.audit.filters import Rule
from flnl.audit.options import Options
from flnl.audit.precision import CUTS, expected_false, expected_precision, largest_cut, shares_of_test_set
from flnl.audit.prior import ClientPrior
from flnl.audit.result import PrecisionCurve
from flnl.audit.samples import Array, row_fault
from flnl.audit.scores import Scoring
from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels


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


def check_test(test: CleanSamples | None, classes: int, options: Options) -> None:
    """Refuse test samples whose probabilities are no distributions over so many classes.

    Raises:
        UserError: for these; or if there are none, and an option needs them.
    """
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
    if (fault := row_fault(test.probabilities)) is not None:
        row, text = fault
        raise UserError(f"test sample {row}: {text}")


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
