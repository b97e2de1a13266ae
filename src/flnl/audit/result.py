"""The result of an audit: what ``audit.csv``, ``audit.json`` and the page show.

Arrays over samples have length N, in the order of ``labels.csv``: by client, then by position. Labels are indices into
``Audit.classes``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flnl.audit.choice import Choice
from flnl.audit.options import Options
from flnl.core.images import Indices, Labels

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class AuditedSamples:
    """Every training sample of the clients."""

    client: Indices  # [N]
    owner: Sequence[str]  # [N], what the client is called
    name: Sequence[str | int]  # [N], the data set's name or path of the sample, or its position in the training set
    position: Indices  # [N], in the training set
    given: Labels  # [N]
    predicted: Labels  # [N], the most probable class
    confident: Labels  # [N], the class that the confident joint counts a sample in; -1: none
    final: Labels | None  # [N], the run's label at its end; None if the run has no labels.csv
    method_flagged: Mask | None  # [N], the method's own verdict; None if it has not judged labels
    label_score: Array  # [N] in [0, 1], low is suspicious
    suspicion_score: Array  # [N] in [0, 1], the label score with the client prior, low is suspicious
    rank: Indices  # [N], a permutation of 0..N-1 by suspicion score, then client, then position
    is_issue: Mask  # [N]
    true: Labels | None  # [N], only for the column true_label; None if unknown
    labels: Indices | None = None  # [N], how many people labelled it; None: one
    agreeing: Indices | None = None  # [N], how many of them gave the given label

    def __len__(self) -> int:
        return len(self.client)

    @property
    def order(self) -> Indices:
        """The samples [N] in the order of their rank, the most suspicious first."""
        return np.argsort(self.rank)


@dataclass(frozen=True)
class ProbabilitySource:
    """Where the probabilities come from."""

    name: str  # window, all, final, folds, or the name of a file
    rounds: tuple[int, ...]  # the evaluated rounds of which they are the mean, of any fold; empty for a file
    in_sample: bool  # whether a model behind them was trained on the sample that it scores
    description: str  # in words: "average of 28 early rounds; the model has seen these samples"
    note: str | None = None  # how to get better ones
    choice: Choice | None = None  # between those of the run; None if they were asked for, or there was none


@dataclass(frozen=True, eq=False)
class JointEstimate:
    """The pooled estimate of label noise. Rows are given classes, columns the classes that labels seem to have."""

    counts: Indices | Array  # [K], samples per given class; recovered ones under label privacy
    thresholds: Array  # [K], mean probability of a class over the samples that were given it; 2 for an absent class
    confident: Indices | Array  # [K, K], the confident joint, its diagonal at least 1
    calibrated: Indices  # [K, K], with the row sums of ``counts``
    prior: Array  # [K], shares of the true classes
    noise: Array  # [K, K], probability of a given class (row) for each true class (column)
    inverse_noise: Array  # [K, K], probability of a true class (row) for each given class (column)
    off_diagonal: int  # issues by confident_learning
    off_diagonal_calibrated: int  # issues that the calibrated joint estimates


@dataclass(frozen=True)
class WrongLabels:
    """How many of some labels are wrong."""

    expected: float
    low: int  # of the 95 % interval
    high: int
    judged: int = 0  # verdicts on labels drawn at random that it rests on; 0: it is estimated from scores

    @classmethod
    def of_all(cls, parts: Sequence[WrongLabels | None]) -> WrongLabels | None:
        """Of several clients together; None if one is unknown. Ends are added, since clients' errors are alike."""
        known = [part for part in parts if part is not None]
        if not known or len(known) < len(parts):
            return None
        low, high, judged = (sum(getattr(part, name) for part in known) for name in ("low", "high", "judged"))
        return cls(sum(part.expected for part in known), low, high, judged)


@dataclass(frozen=True)
class ClientSummary:
    """A client, or all clients below ``Options.min_client`` samples together, or the others in a client's own audit."""

    name: str  # what it is called, "small clients" or "other clients"
    clients: tuple[int, ...]  # whom it stands for
    samples: int
    disagreements: int  # samples whose most probable class is not the given one
    issues: int
    flagged: int | None  # the method's own flags; None if it has not judged labels
    rate: float | None  # e_c, its share of disagreements drawn towards that of all, by any prior; None if pooled
    pair: tuple[int, int] | None  # the most frequent (given, predicted) of its issues; None without issues
    below: tuple[int, ...]  # its samples below each of the curve's cuts
    wrong: WrongLabels | None = None  # how many of its labels are wrong; None if that cannot be estimated


@dataclass(frozen=True)
class PairSummary:
    """Issues of a given class that seem to be of another one."""

    given: int
    predicted: int
    issues: int


@dataclass(frozen=True)
class PrecisionCurve:
    """The expected precision of the samples below cuts on the suspicion score, from the test set."""

    cuts: tuple[float, ...]  # 101, from 0 to 1
    below: tuple[int, ...]  # samples with a suspicion score below each
    expected: tuple[float | None, ...]  # in [0, 1]; None where nothing is below, or without scores of the test set
    test_samples: int  # M; a share of the test set below 1 / M is invisible
    of_issues: float | None  # of the issues themselves; None without issues or scores of the test set


@dataclass(frozen=True)
class Review:
    """What verdicts on samples say."""

    right: int
    wrong: int
    unsure: int
    drawn: int  # issues drawn at random for the review
    judged: int  # verdicts of any kind on them
    sampled: int  # verdicts, right or wrong, on them
    precision: float | None  # share of wrong labels among these; None without any, or before all drawn ones are judged
    interval: tuple[float, float] | None  # Wilson's, 95 %


@dataclass(frozen=True, eq=False)
class Audit:
    """The label audit of a run."""

    key: str  # of the run
    fingerprint: str | None  # of its federation; None in the audit of a single client
    version: str  # of the package
    dataset: str
    method: str  # title
    seed: int
    classes: tuple[str, ...]  # [K]
    options: Options
    source: ProbabilitySource
    samples: AuditedSamples
    detailed: (
        Indices  # [S], samples of which the next two tell: the first ``Options.top`` by rank, then others to review
    )
    likeliest: Labels  # [S, 3 or K], their most probable classes
    likeliest_probability: Array  # [S, 3 or K], descending
    joint: JointEstimate
    by_client: tuple[ClientSummary, ...]  # by number
    by_pair: tuple[PairSummary, ...]  # the largest first
    precision: PrecisionCurve
    cut: float | None  # of ``Options.min_precision``; None without it, 0 if no cut reaches it
    to_review: Indices  # [at most 50], issues drawn at random, ascending
    review: Review | None  # None without verdicts
    notes: tuple[str, ...]  # limits of this audit, in words
    measured: Mapping[str, Any] | None  # against the truth; None if it is unknown
    wrong: WrongLabels | None = None  # how many of the samples' labels are; None if that cannot be estimated

    @property
    def size(self) -> int:
        """The number of labels, also of those that are at sites and not among ``samples``."""
        return len(self.samples) or sum(row.samples for row in self.by_client)

    @property
    def issues(self) -> int:
        """The number of issues, likewise."""
        return int(self.samples.is_issue.sum()) if len(self.samples) else sum(row.issues for row in self.by_client)

    @property
    def title(self) -> str:
        """What is audited: the data set, the method and, in the audit of a single client, whose labels."""
        whose = [] if self.fingerprint is not None else [f"client {self.by_client[0].name}"]
        return " · ".join([self.dataset, self.method, *whose])
