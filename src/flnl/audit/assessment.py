"""The audit of labels, given their probabilities: scores, pooled estimates, issues, expected precision.

It knows nothing of runs and images, and reads no truth.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from flnl.audit.clean_samples import Clean, CleanSamples, CleanShares, check_test, precision_curve
from flnl.audit.counting import Counts, confident_class
from flnl.audit.filters import Blocks, OffDiagonal, Rule, rule_of
from flnl.audit.options import Options
from flnl.audit.pooling import count_clients
from flnl.audit.precision import below_cuts, first_cuts
from flnl.audit.prior import ClientPrior
from flnl.audit.probability_table import ProbabilityTable
from flnl.audit.result import JointEstimate, PrecisionCurve
from flnl.audit.samples import Array, LabelledSamples, check_labels
from flnl.audit.scores import Scoring, ranks
from flnl.core.images import Indices, Labels

Mask = NDArray[np.bool_]


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
    check_labels(samples, table.shape)
    check_test(test, table.shape[1], options)
    counting = count_clients(samples, table, options.label_privacy, secret)
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
