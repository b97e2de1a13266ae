"""The audit of a run: from its folder to an ``Audit``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flnl import __version__
from flnl.audit import source, summaries
from flnl.audit.assessment import Assessment, assess
from flnl.audit.audited_run import AuditedRun
from flnl.audit.options import Options
from flnl.audit.probability_table import ProbabilityTable, rows_at
from flnl.audit.result import Audit, AuditedSamples, PrecisionCurve, ProbabilitySource
from flnl.audit.verdicts import Verdict, read_verdicts
from flnl.core.errors import UserError
from flnl.core.images import Indices
from flnl.evaluation.label_audit import audit_measures, true_labels

ENOUGH_TEST_SAMPLES = 200
LIKELIEST = 3
"""Classes of each suspect that the page shows."""
PRIVACY_NOTE = (
    "label privacy covers the messages of which thresholds, joint and client prior are made; the issues are each "
    "client's own, from its own labels"
)


@dataclass(frozen=True, eq=False)
class Examined:
    """An audit, those of single clients if asked for, and what they were made of."""

    audit: Audit
    of_clients: Mapping[int, Audit]
    run: AuditedRun
    verdicts: Mapping[int, Verdict]  # by index


def examine(folder: Path, options: Options, report: Callable[[str], None]) -> Examined:
    """Audit the run in ``folder``; ``report`` is told in a line what takes long.

    Raises:
        UserError: for mistakes that the user can correct.
    """
    if options.corrections == "reviewed" and options.reviewed is None:
        raise UserError("--corrections reviewed needs verdicts: add --reviewed verdicts.csv")
    run = AuditedRun.open(folder, options.config_dir)
    classes = run.federation.dataset.classes
    verdicts = {} if options.reviewed is None else read_verdicts(options.reviewed, run.samples, classes)
    where, table, test = source.find(run, options, report)
    if table.shape[1] != len(classes):
        raise UserError(f"the probabilities are of {table.shape[1]} classes, and the run has {len(classes)}")
    assessed = assess(run.samples, table, test, options, run.data_seed)
    samples = _audited(run, assessed)
    review = summaries.to_review(samples, run.data_seed)
    rows = summaries.by_client(samples, assessed.prior.rates.tolist(), assessed.below, len(classes))
    whole = Audit(
        key=str(run.record["key"]),
        fingerprint=run.federation.fingerprint,
        version=__version__,
        dataset=run.federation.dataset.name,
        method=run.method,
        seed=int(run.config["seed"]),
        classes=tuple(classes),
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
        review=summaries.reviewed(verdicts, review) if options.reviewed is not None else None,
        notes=_notes(where, assessed.precision, options),
        measured=_measured(samples),
    )
    parts: dict[int, tuple[Indices, Audit]] = {}
    for row in rows if options.clients else ():
        (client,) = row.clients
        index = np.flatnonzero(samples.client == client)
        own = summaries.part_of(samples, index)
        chosen = summaries.to_review(own, run.data_seed, 1 + client)
        parts[client] = (
            index,
            replace(
                whole,
                samples=own,
                detailed=_detailed(own, chosen, options.top),
                by_client=summaries.of_one(rows, client),
                by_pair=summaries.by_pair(own, len(classes)),
                precision=replace(assessed.precision, below=row.below),
                to_review=chosen,
                review=None,
                measured=_measured(own),
            ),
        )
    everything = [(np.arange(len(samples)), whole), *parts.values()]
    whole, *owns = _with_likeliest(everything, table)
    return Examined(whole, dict(zip(parts, owns, strict=True)), run, verdicts)


def _audited(run: AuditedRun, assessed: Assessment) -> AuditedSamples:
    return AuditedSamples(
        client=run.samples.client,
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
    )


def _measured(samples: AuditedSamples) -> dict[str, object] | None:
    if samples.true is None:
        return None
    return audit_measures(samples.true, samples.given, samples.rank, samples.is_issue)


def _detailed(samples: AuditedSamples, review: Indices, top: int) -> Indices:
    first = samples.order[:top]
    return np.concatenate([first, np.setdiff1d(review, first)]).astype(np.int64)


def _with_likeliest(audits: list[tuple[Indices, Audit]], table: ProbabilityTable) -> list[Audit]:
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


def _notes(where: ProbabilitySource, precision: PrecisionCurve, options: Options) -> tuple[str, ...]:
    notes = [where.note] if where.note is not None else []
    if precision.test_samples < ENOUGH_TEST_SAMPLES:
        few = (
            "no probabilities of test samples"
            if not precision.test_samples
            else f"{precision.test_samples} test samples"
        )
        notes.append(f"{few}: too few for an expected precision to rely on; review a sample")
    if options.label_privacy is not None:
        notes.append(PRIVACY_NOTE)
    return tuple(notes)
