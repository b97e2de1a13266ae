"""The audit of a run: from its folder to an ``Audit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flnl import __version__
from flnl.audit import source, summaries
from flnl.audit.assessment import Assessment, assess
from flnl.audit.audited_run import AuditedRun
from flnl.audit.clean_samples import CleanSamples
from flnl.audit.corrections import refuse_parts
from flnl.audit.label_privacy import secret_in
from flnl.audit.options import Options
from flnl.audit.people import with_people
from flnl.audit.probability_table import ProbabilityTable, rows_at
from flnl.audit.result import (
    Audit,
    AuditedSamples,
    ClientSummary,
    JointEstimate,
    PrecisionCurve,
    ProbabilitySource,
    WrongLabels,
)
from flnl.audit.verdicts import Verdict, read_verdicts
from flnl.audit.wrong_by_review import numbers
from flnl.audit.wrong_labels import Estimate, wrong_labels
from flnl.console.words import counted
from flnl.core.errors import UserError
from flnl.core.images import Indices
from flnl.data.votes import NOBODY
from flnl.evaluation.label_audit import audit_measures, true_labels

ENOUGH_TEST_SAMPLES = 200
HARDLY = 0.5
"""Share of a client's labels that an interval may span before a note says that it tells little."""
LIKELIEST = 3
"""Classes of each suspect that the page shows."""
PRIVACY_NOTE = (
    "label privacy covers the messages of which thresholds, joint and client prior are made; the issues are each "
    "client's own, from its own labels"
)
PEOPLE_NOTE = (
    "people's labels judge together with the models (CROWDLAB); test samples have one label, so no expected precision "
    "is told"
)


@dataclass(frozen=True, eq=False)
class Examined:
    """An audit, those of single clients if asked for, and what they were made of."""

    audit: Audit
    of_clients: Mapping[int, Audit]
    run: AuditedRun
    verdicts: Mapping[int, Verdict]  # by index


@dataclass(frozen=True, eq=False)
class OfAll:
    """What a server says of all samples that are not there."""

    joint: JointEstimate
    precision: PrecisionCurve
    cut: float | None


def examine(folder: Path, options: Options, report: Callable[[str], None]) -> Examined:
    """Audit the run in ``folder``; ``report`` is told in a line what takes long.

    Raises:
        UserError: for mistakes that the user can correct.
    """
    run = AuditedRun.open(folder, options.config_dir, options.data)
    _refuse_unwritable(run, options)
    secret = None
    if options.label_privacy is not None:
        secret = secret_in(options.secret, [folder, *([] if options.out is None else [options.out])], report)
    classes = run.federation.dataset.classes
    verdicts = read_verdicts(options.reviewed, run.samples, classes)
    where, table, test = source.find(run, options, report)
    if table.shape[1] != len(classes):
        raise UserError(f"the probabilities are of {table.shape[1]} classes, and the run has {len(classes)}")
    judges = _judges(run, options, table)
    assessed = assess(run.samples, judges, test if judges is table else None, options, secret)
    samples = audited(run, assessed)
    rows = summaries.by_client(samples, assessed.prior.rates.tolist(), assessed.below, len(classes))
    found, why_not = _wrong(run, options, where, table, test, samples)
    by_client, wrong = numbers(found, samples, verdicts, run.record.data_seed)
    rows = [replace(row, wrong=its) for row, its in zip(rows, by_client, strict=True)]
    whole = whole_audit(run, options, where, assessed, samples, rows, verdicts, together=judges is not table)
    whole = replace(whole, wrong=wrong, notes=(*whole.notes, *note_on_wrong(rows, where, wrong, why_not)))
    parts = {
        client: of_client(whole, assessed, rows, place, run.record.data_seed)
        for place, client in enumerate(run.samples.clients.tolist() if options.clients else ())
    }
    index = [np.flatnonzero(run.samples.client == client) for client in parts]
    everything = [(np.arange(len(run.samples)), whole), *zip(index, parts.values(), strict=True)]
    whole, *of_clients = with_likeliest(everything, judges)
    return Examined(whole, dict(zip(parts, of_clients, strict=True)), run, verdicts)


def _judges(run: AuditedRun, options: Options, table: ProbabilityTable) -> ProbabilityTable:
    """The probabilities of the models, together with people where several labelled a sample.

    Raises:
        UserError: if an option needs test samples that were labelled as the clients' were.
    """
    people = run.samples.people
    if people is None or options.people == "ignore" or options.label_privacy is not None:
        return table
    joined = with_people(table, people, run.samples.place)
    if joined is None:
        return table
    if options.min_precision is not None:
        raise UserError(
            "--min-precision compares with test samples, which have one label, and the clients' have several: leave it "
            "out, or add --people ignore"
        )
    return joined


def _wrong(
    run: AuditedRun,
    options: Options,
    where: ProbabilitySource,
    table: ProbabilityTable,
    test: CleanSamples | None,
    samples: AuditedSamples,
) -> tuple[list[Estimate] | None, str | None]:
    """How many labels of each client are wrong, or else why that is not told."""
    if (why_not := why_wrong_untold(test, options)) is not None or test is None:
        return None, why_not
    found = wrong_labels(run.samples, table, test, samples.is_issue, seen=where.in_sample)
    return (None, memorised(where)) if found is None else (found, None)


def why_wrong_untold(test: CleanSamples | None, options: Options) -> str | None:
    """Why it is not told how many labels are wrong, whatever the scores are; None if they decide."""
    if options.label_privacy is not None:
        return "it takes messages that label privacy does not cover"
    tested = 0 if test is None else len(test.labels) // test.times
    if tested < ENOUGH_TEST_SAMPLES:
        return f"it takes {ENOUGH_TEST_SAMPLES} test samples, and there are {_tested(tested)}"
    return None


def memorised(where: ProbabilitySource) -> str:
    """Why it is not told how many labels are wrong, if models are surer of test samples than right."""
    early = "early models (--probabilities window) or " if where.name in ("all", "final") else ""
    return (
        "the models are surer of test samples than right, as such that have memorised wrong labels, which then "
        f"score as right ones do; {early}models that have not seen the sample (--folds 5) may tell"
    )


def note_on_wrong(
    rows: Sequence[ClientSummary], where: ProbabilitySource, wrong: WrongLabels | None, why_not: str | None
) -> tuple[str, ...]:
    """What to say of the number of wrong labels, in a note or none."""
    caution = hardly_known(rows, where) if why_not is None or wrong is not None else f"is not told: {why_not}"
    return () if caution is None else (f"how many labels are wrong {caution}",)


def hardly_known(rows: Sequence[ClientSummary], where: ProbabilitySource) -> str | None:
    """What to say where a client's interval spans more than ``HARDLY`` of its labels."""
    wide = [row for row in rows if row.wrong is not None and row.wrong.high - row.wrong.low > HARDLY * row.samples]
    if not wide:
        return None
    why = (
        "the models have seen the labels and may have memorised wrong ones; models that have not (--folds 5)"
        if where.in_sample
        else "the models are no judges of these labels; more folds, by samples,"
    )
    return f"is hardly known at {len(wide)} of {counted(len(rows), 'client')}: {why} or a review of a sample tell more"


def _refuse_unwritable(run: AuditedRun, options: Options) -> None:
    """Refuse now what could not be written at the end.

    Raises:
        UserError: if the run has no corrected labels to write, or images that a page cannot show.
    """
    if options.corrections is not None:
        refuse_parts(run)
    if "html" in options.formats and options.thumbnails != 0:
        from flnl.audit.page.pictures import check_pictures  # takes Pillow

        check_pictures(run.federation.dataset)


def whole_audit(
    run: AuditedRun,
    options: Options,
    where: ProbabilitySource,
    assessed: Assessment | OfAll,
    samples: AuditedSamples,
    rows: Sequence[ClientSummary],
    verdicts: Mapping[int, Verdict],
    *,
    together: bool = False,
) -> Audit:
    """The audit of all clients, without the likeliest classes of its samples."""
    classes = tuple(run.federation.dataset.classes)
    review = summaries.to_review(samples, run.record.data_seed)
    return Audit(
        key=run.record.key,
        fingerprint=run.federation.fingerprint,
        version=__version__,
        dataset=run.federation.dataset.name,
        method=run.record.method,
        seed=run.record.seed,
        classes=classes,
        options=options,
        source=where,
        samples=samples,
        detailed=_detailed(samples, review, options.top),
        likeliest=np.zeros((0, 0), np.int64),
        likeliest_probability=np.zeros((0, 0)),
        joint=assessed.joint,
        by_client=summaries.with_small_pooled(rows, options.min_client),
        by_pair=summaries.by_pair(samples, len(classes)),
        precision=assessed.precision,
        cut=assessed.cut,
        to_review=review,
        review=summaries.reviewed(verdicts, review) if options.reviewed else None,
        notes=_notes(where, assessed.precision, options, together),
        measured=_measured(samples),
    )


def of_client(whole: Audit, assessed: Assessment, rows: Sequence[ClientSummary], place: int, seed: int) -> Audit:
    """The audit that the client at ``place`` in ``rows`` may see: its samples, and pooled numbers of the others.

    It has no fingerprint of the federation, which tells the labels of others to who tries labels until it fits. Under
    label privacy the others have no row: its numbers count their own labels, not the drawn ones.
    """
    (client,) = rows[place].clients
    samples = summaries.part_of(whole.samples, np.flatnonzero(whole.samples.client == client))
    review = summaries.to_review(samples, seed, 1 + client)
    return replace(
        whole,
        fingerprint=None,
        samples=samples,
        detailed=_detailed(samples, review, whole.options.top),
        by_client=(rows[place],) if whole.options.label_privacy is not None else summaries.of_one(rows, place),
        by_pair=summaries.by_pair(samples, len(whole.classes)),
        precision=assessed.precision_of(slice(place, place + 1)),
        to_review=review,
        review=None,
        measured=_measured(samples),
        wrong=rows[place].wrong,
    )


def audited(run: AuditedRun, assessed: Assessment) -> AuditedSamples:
    """The run's samples with what an audit says of each."""
    people = run.samples.people
    return AuditedSamples(
        client=run.samples.client,
        owner=run.samples.owner,
        name=run.samples.name,
        position=run.position,
        given=run.samples.given,
        predicted=assessed.predicted,
        confident=assessed.confident,
        final=None if run.labels is None else run.labels.final,
        method_flagged=None if run.labels is None else run.labels.flagged,
        label_score=assessed.label_score,
        suspicion_score=assessed.suspicion_score,
        rank=assessed.rank,
        is_issue=assessed.is_issue,
        true=true_labels(run.federation, run.position),
        labels=None if people is None else (people != NOBODY).sum(axis=0),
        agreeing=None if people is None else (people == run.samples.given).sum(axis=0),
    )


def _measured(samples: AuditedSamples) -> dict[str, object] | None:
    if samples.true is None:
        return None
    return audit_measures(samples.true, samples.given, samples.rank, samples.is_issue)


def _detailed(samples: AuditedSamples, review: Indices, top: int) -> Indices:
    first = samples.order[:top]
    return np.concatenate([first, np.setdiff1d(review, first)]).astype(np.int64)


def with_likeliest(audits: list[tuple[Indices, Audit]], table: ProbabilityTable) -> list[Audit]:
    """The audits, each of the samples at some index, with the likeliest classes; one pass over the probabilities."""
    wanted, inverse = np.unique(np.concatenate([index[audit.detailed] for index, audit in audits]), return_inverse=True)
    rows = rows_at(table, wanted)
    best = np.argsort(-rows, axis=1, kind="stable")[:, :LIKELIEST]
    values = np.take_along_axis(rows, best, axis=1)
    ends = np.cumsum([len(audit.detailed) for _, audit in audits])
    places = np.split(inverse, ends[:-1])
    return [
        replace(audit, likeliest=best[place], likeliest_probability=values[place])
        for (_, audit), place in zip(audits, places, strict=True)
    ]


def _notes(where: ProbabilitySource, precision: PrecisionCurve, options: Options, together: bool) -> tuple[str, ...]:
    notes = [where.note] if where.note is not None else []
    if together:
        notes.append(PEOPLE_NOTE)
    elif precision.test_samples < ENOUGH_TEST_SAMPLES:
        notes.append(
            f"{_tested(precision.test_samples)} (below {ENOUGH_TEST_SAMPLES}): too few for an expected precision to "
            "rely on; review a sample"
        )
    if options.label_privacy is not None:
        notes.append(PRIVACY_NOTE)
    return tuple(notes)


def _tested(samples: int) -> str:
    return counted(samples, "test sample") if samples else "no probabilities of test samples"
