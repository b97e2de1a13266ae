"""What a server asks in an audit of labels that are at sites, and what these answer: numbers over samples alone.

There are five questions (``STEPS``). Each has what was learned from those before it, so that a site keeps nothing
between them. Sums are whole numbers, as in ``flnl.audit.counting``, and so the estimate is that of the pooled samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.audit.clean_samples import CleanSamples
from flnl.audit.options import Options
from flnl.audit.result import ClientSummary, WrongLabels
from flnl.core.ranges import NonNegative
from flnl.core.reported import OfSamples, SamplesPerClass, Shaped
from flnl.core.stored import stored

STEPS = ("count", "join", "mark", "list", "write")
OPTIONS = (
    *("score", "adjust", "issues", "prior", "prior_weight", "min_precision", "min_client", "clients"),
    *("corrections", "formats", "spreadsheet", "top", "per_page", "thumbnails"),
)
"""The options that a server chooses for all sites."""
SHOWN = ("corrections", "formats", "spreadsheet", "top", "per_page", "thumbnails")
"""Those of them that are about a site's own page alone."""


@stored("AuditedWrongLabels")
class Wrong:
    """How many labels are wrong, as ``WrongLabels``."""

    expected: NonNegative
    low: int
    high: int
    judged: int

    @classmethod
    def of(cls, found: WrongLabels | None) -> Wrong | None:
        """The same in a message."""
        return None if found is None else cls(float(found.expected), found.low, found.high, found.judged)

    @property
    def found(self) -> WrongLabels:
        """The same outside of one."""
        return WrongLabels(self.expected, self.low, self.high, self.judged)


@stored("AuditedOthers")
class Others:
    """All other sites together, as ``ClientSummary``."""

    clients: tuple[int, ...]
    samples: int
    disagreements: int
    issues: int
    flagged: int | None
    below: Tensor  # int64 [101]
    wrong: Wrong | None

    @classmethod
    def of(cls, row: ClientSummary) -> Others:
        """The row of others in a message."""
        counts = (row.samples, row.disagreements, row.issues, row.flagged)
        return cls(row.clients, *counts, torch.tensor(row.below), Wrong.of(row.wrong))

    @property
    def row(self) -> ClientSummary:
        """The row."""
        counts = (self.samples, self.disagreements, self.issues, self.flagged)
        below = tuple(int(one) for one in self.below.tolist())
        return ClientSummary(
            "", self.clients, *counts, None, None, below, None if self.wrong is None else self.wrong.found
        )


@stored("AuditHead")
class Head:
    """What stands above a site's page."""

    key: str
    method: str
    dataset: str
    source: str  # name
    rounds: tuple[int, ...]
    description: str
    note: str | None
    notes: tuple[str, ...]


@stored("AuditQuestion")
class Question:
    """A question to a site; what is known only after it is None."""

    step: str
    options: dict[str, Any]
    seed: int  # of the labels that are drawn for a review
    test_labels: Tensor  # int64 [M], of the server's test set
    test_probabilities: Tensor  # float64 [M, K], by the audited model
    tells_wrong: bool  # whether it is to be estimated how many labels are wrong
    summed: tuple[int, int] | None  # the recorded round and number of models whose mean is taken; None: the last model
    thresholds: Tensor | None = None  # float64 [K]
    counts: Tensor | None = None  # int64 [K], samples of each given class
    joint: Tensor | None = None  # int64 [K, K], samples by given and confident class
    off_diagonal: int | None = None
    rate: float | None = None  # the site's, by the client prior
    shift: float | None = None  # of the log odds of the site's scores; None if sites do not differ
    cut: float | None = None
    together: Tensor | None = None  # float64 [G], sum of all sites' evidence
    others: Others | None = None  # None also if there is no other site
    head: Head | None = None

    def counted(self) -> tuple[Any, ...]:
        """What of it decides which samples the answer counts; nothing of what a page shows."""
        if self.step == STEPS[0]:
            return (self.summed,)
        options = {name: one for name, one in self.options.items() if name not in SHOWN}
        scored = (options, self.summed, self.thresholds, self.tells_wrong, self.test_labels, self.test_probabilities)
        known = (self.counts, self.joint, self.off_diagonal, self.rate, self.shift, self.cut, self.together)
        return scored if self.step == STEPS[1] else (*scored, *known)

    @property
    def test(self) -> CleanSamples | None:
        """The test set; None if the server has none."""
        if not len(self.test_labels):
            return None
        return CleanSamples(self.test_labels.numpy(), self.test_probabilities.numpy())


def options_in(options: Options) -> dict[str, Any]:
    """The options that are sent."""
    return {name: one for name, one in asdict(options).items() if name in OPTIONS}


@stored("CountedLabels")
class CountedLabels:
    """A site's labels of each class in an audit, and the sums of their probabilities."""

    counts: SamplesPerClass
    sums: Annotated[Tensor, Shaped("int64", ("K",))]  # of the probabilities, times 2**32


@stored("CountedJoint")
class CountedJoint:
    """A site's samples by given class and the class that they seem to have."""

    joint: Annotated[Tensor, Shaped("int64", ("K", "K")), OfSamples()]
    off_diagonal: Annotated[int, OfSamples()]  # issues by confident_learning
    disagreements: Annotated[int, OfSamples()]
    evidence: Annotated[Tensor, Shaped("float64", ("G",))] | None  # log likelihood of its scores, if it can be told


@stored("CountedMarks")
class CountedMarks:
    """How suspicious a site's labels are."""

    below: Annotated[Tensor, Shaped("int64", ("cuts",))]  # samples below each cut on the suspicion score
    cuts: int  # of use for its issues


@stored("CountedIssues")
class CountedIssues:
    """A site's issues by given and predicted class, and how many of its labels are wrong."""

    pairs: Annotated[Tensor, Shaped("int64", ("K", "K")), OfSamples()]
    pair: Annotated[Tensor, Shaped("int64", ("2",))] | None  # the most frequent
    flagged: Annotated[int, OfSamples()] | None  # by the method; None if it has not judged labels, or that is not told
    wrong: Wrong | None


@stored("AuditWritten")
class PageWritten:
    """A site has written its page."""

    files: int


ANSWERS: dict[str, type] = dict(
    zip(STEPS, (CountedLabels, CountedJoint, CountedMarks, CountedIssues, PageWritten), strict=True)
)


def tensor(values: NDArray[Any] | Sequence[Any]) -> Tensor:
    """A tensor of numbers, of 64 bits each."""
    array = np.asarray(values)
    return torch.from_numpy(np.ascontiguousarray(array, np.float64 if array.dtype.kind == "f" else np.int64))
