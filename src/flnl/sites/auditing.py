"""A site's part in an audit: it answers in sums over its samples, and writes a page of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from flnl.audit import assessment, pooling, source, summaries
from flnl.audit.assessment import Assessment, Pooled, Scored
from flnl.audit.audited_run import AuditedRun
from flnl.audit.counting import joint_counts
from flnl.audit.examination import Examined, audited, of_client, whole_audit, with_likeliest
from flnl.audit.options import Options
from flnl.audit.pooling import probability_sums
from flnl.audit.prior import ClientPrior
from flnl.audit.probability_table import InMemory
from flnl.audit.recorded_labels import read_labels
from flnl.audit.result import AuditedSamples, ClientSummary, ProbabilitySource
from flnl.audit.samples import LabelledSamples
from flnl.audit.verdicts import read_verdicts
from flnl.audit.writing import write
from flnl.audit.wrong_by_review import numbers
from flnl.audit.wrong_labels import evidence, wrong_labels
from flnl.core.errors import UserError
from flnl.data.federation.build import Federation
from flnl.engine.model_file import ModelFile
from flnl.record import label_table
from flnl.record.run import RunRecord
from flnl.sites import recorded
from flnl.sites.audit_messages import (
    OPTIONS,
    STEPS,
    CountedIssues,
    CountedJoint,
    CountedLabels,
    CountedMarks,
    PageWritten,
    Question,
    Wrong,
    tensor,
)
from flnl.sites.messages import RefusedError

FOLDER = "audit"
NO_CONFIG: Mapping[str, Any] = {"dataset": {}}
"""Of the record of a run that was led elsewhere."""


Corrected = Literal["suggested", "reviewed"]


@dataclass(frozen=True)
class Review:
    """What a site has decided of its labels: files of verdicts, and which labels ``corrected.csv`` gets."""

    files: tuple[Path, ...] = ()
    corrections: Corrected | None = None


@dataclass(frozen=True, eq=False)
class SiteAudit:
    """An audit at a site.

    Args:
        folder: what the site has of the run.
        federation: in which the site is the only client.
        client: its number in the run.
        clients: how many there are.
        counts: whether the number of labels that the method has flagged may leave.
        review: of its labels, if there was one.
    """

    folder: Path
    federation: Federation
    client: int
    clients: int
    counts: bool
    review: Review
    table: InMemory | None = None  # of the question that is answered

    @cached_property
    def run(self) -> AuditedRun:
        """The site's samples and what the run has made of them."""
        own, names = self.federation, self.federation.client_names
        assert names is not None, "a site has a name"
        called = tuple(names[0] if number == self.client else str(number) for number in range(self.clients))
        given = own.given.numpy()
        samples = LabelledSamples(np.full(len(given), self.client), own.names, given, called)
        labels, file = None, self.folder / label_table.NAME
        if file.exists():
            labels = read_labels(file, samples, own.dataset.classes)
        return AuditedRun(self.folder, RunRecord(config=NO_CONFIG), own, samples, own.held, labels)

    def _table(self, summed: tuple[int, int] | None) -> InMemory:
        """Probabilities by the models that are asked for."""
        if summed is not None:
            last, count = summed
            return InMemory((recorded.sums(self.folder / recorded.FOLDER, last).double() / count).float().numpy())
        network = ModelFile.load(self.folder).network()
        return InMemory(source.scored(network, self.federation.dataset.train, self.run.position))

    @property
    def _rows(self) -> InMemory:
        assert self.table is not None, "a question says which"
        return self.table

    def answer(self, question: Question) -> Any:
        """What leaves the site.

        Raises:
            UserError: if the site has no model of the run.
            RefusedError: for a question that is none.
        """
        at, options = step_of(question), _options(question)
        if self.table is None:
            return replace(self, table=self._table(question.summed)).answer(question)
        if at == 0:
            sums = probability_sums(self.run.samples, self._rows)
            return CountedLabels(tensor(sums.counts), tensor(sums.sums))
        assert question.thresholds is not None, "checked"
        thresholds = question.thresholds.numpy()
        scored = assessment.scored_by(self.run.samples, self._rows, options, thresholds)
        if at == 1:
            return self._joined(question, thresholds, scored)
        assessed = self._assessed(question, options, scored)
        if at == 2:
            return CountedMarks(tensor(assessed.below[0]), assessed.cuts)
        samples = audited(self.run, assessed)
        row = self._row(question, options, assessed, samples)
        if at == 3:
            return self._counted(samples, row)
        return PageWritten(len(write(self._examined(question, options, assessed, samples, row)).files))

    def _joined(self, question: Question, thresholds: NDArray[np.float64], scored: Scored) -> CountedJoint:
        samples, told = self.run.samples, None
        if question.tells_wrong and question.test is not None:
            told = evidence(samples, self._rows, question.test, seen=True)
        return CountedJoint(
            tensor(joint_counts(samples.given, scored.confident, len(thresholds))),
            scored.off_diagonal,
            int((scored.predicted != samples.given).sum()),
            None if told is None else tensor(told[0]),
        )

    def _assessed(self, question: Question, options: Options, scored: Scored) -> Assessment:
        counts, joint, off_diagonal, rate = question.counts, question.joint, question.off_diagonal, question.rate
        assert question.thresholds is not None
        assert counts is not None
        assert joint is not None
        assert off_diagonal is not None
        assert rate is not None
        estimated = pooling.estimated(counts.numpy(), question.thresholds.numpy(), joint.numpy(), off_diagonal)
        shift = None if question.shift is None else np.array([question.shift])
        pooled = Pooled(estimated, ClientPrior(np.array([rate]), shift), question.cut)
        if question.cut is None:  # it is chosen of all sites' numbers
            options = replace(options, min_precision=None)
        return assessment.assessed(self.run.samples, self._rows, question.test, options, pooled, scored)

    def _row(
        self, question: Question, options: Options, assessed: Assessment, samples: AuditedSamples
    ) -> ClientSummary:
        rates, classes = assessed.prior.rates.tolist(), len(self.federation.dataset.classes)
        (row,) = summaries.by_client(samples, rates, assessed.below, classes)
        found = None
        if question.together is not None and question.test is not None:
            found = wrong_labels(
                self.run.samples,
                self._rows,
                question.test,
                samples.is_issue,
                seen=True,
                together=question.together.numpy(),
            )
        verdicts = read_verdicts(self.review.files, self.run.samples, self.federation.dataset.classes)
        (wrong,), _ = numbers(found, samples, verdicts if step_of(question) == len(STEPS) - 1 else {}, question.seed)
        return replace(row, wrong=wrong)

    def _counted(self, samples: AuditedSamples, row: ClientSummary) -> CountedIssues:
        classes = len(self.federation.dataset.classes)
        pairs = np.zeros((classes, classes), np.int64)
        at = samples.is_issue
        np.add.at(pairs, (samples.given[at], samples.predicted[at]), 1)
        pair = None if row.pair is None else tensor(row.pair)
        return CountedIssues(tensor(pairs), pair, row.flagged if self.counts else None, Wrong.of(row.wrong))

    def _examined(
        self,
        question: Question,
        options: Options,
        assessed: Assessment,
        samples: AuditedSamples,
        row: ClientSummary,
    ) -> Examined:
        """The site's own audit, as that of a client beside others."""
        head, data = question.head, self.federation.dataset
        assert head is not None, "checked"
        where = ProbabilitySource(head.source, head.rounds, True, head.description, head.note)
        verdicts = read_verdicts(self.review.files, self.run.samples, data.classes)
        options = replace(
            options,
            out=self.folder / FOLDER,
            force=True,
            reviewed=self.review.files,
            corrections=self.review.corrections or options.corrections,
        )
        record = replace(self.run.record, config={**self.run.record.config, "seed": question.seed})
        run = replace(self.run, record=record)
        whole = whole_audit(run, options, where, assessed, samples, [row], verdicts)
        whole = replace(whole, key=head.key, method=head.method, dataset=head.dataset, notes=head.notes)
        rows = [row, *([] if question.others is None else [question.others.row])]
        alone = of_client(whole, assessed, rows, 0, question.seed)
        (alone,) = with_likeliest([(np.arange(len(samples)), alone)], self._rows)
        return Examined(alone, {}, run, verdicts)


def step_of(question: Question) -> int:
    """The number of a question's step.

    Raises:
        RefusedError: if there is no such step, or it lacks what the steps before have told.
    """
    if question.step not in STEPS:
        raise RefusedError("an audit has no such step")
    at = STEPS.index(question.step)
    needed: list[list[object]] = [
        [],
        [question.thresholds],
        [question.counts, question.joint, question.off_diagonal, question.rate],
        [],
        [question.head],
    ]
    if any(one is None for told in needed[: at + 1] for one in told):
        raise RefusedError("a question of an audit without what is known before it")
    return at


def _options(question: Question) -> Options:
    """The options.

    Raises:
        RefusedError: if they are none.
    """
    given: Mapping[str, Any] = question.options
    if not isinstance(given, dict) or {*given} != {*OPTIONS}:
        raise RefusedError("other options of an audit than there are")
    try:
        return Options(**given)
    except (UserError, TypeError) as error:
        raise RefusedError(str(error)) from None
