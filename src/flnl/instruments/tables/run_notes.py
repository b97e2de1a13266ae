"""Notes below a table from the records of its finished runs: early ends, equal rows, what methods were given."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean
from typing import Any

from flnl.config.registry import recorded_name
from flnl.core.grouping import group_by_key
from flnl.core.numbers import is_number
from flnl.instruments.tables.plan import Place, Plan
from flnl.instruments.tables.results import Filled
from flnl.record.run import RunRecord

FOLDER = "ImageFolder"
"""The class of data sets that read a user's files."""
CORRELATION = "quality_rank_correlation"
"""Spearman's coefficient, in [-1, 1], of the clients' estimated quality and their true share of correct labels."""


@dataclass(frozen=True)
class Ended:
    """A finished run."""

    folder: str  # its name
    planned: int  # budget of local trainings
    record: RunRecord
    last: Mapping[str, Any]  # the last evaluation; empty if there is none

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The closing metrics of its record."""
        return self.record.metrics

    @cached_property
    def numbers(self) -> str:
        """The closing metrics and the last evaluation as JSON, for exact comparison; empty without an evaluation."""
        return json.dumps([self.metrics, self.last], sort_keys=True) if self.last else ""


Rows = Mapping[str, Sequence[tuple[Ended, ...]]]
"""By label: the finished runs of each rendered column, in the order of seeds."""


def with_observations(plan: Plan, filled: Filled, layout: Sequence[Sequence[Place]]) -> Filled:
    """A table of ``plan`` with notes on its runs and their noise; ``layout`` has its cells by the paper's columns."""
    columns = [column.label for column in filled.columns]
    rows = {
        row.label: [tuple(_ended(plan, places[which[0]])) for which in filled.of_paper]
        for row, places in zip(filled.table.rows, layout, strict=True)
    }
    equal = alike(columns, rows, filled.table.no_effect)
    seen = (*endings(rows), *equal, *estimates(rows), *given(rows), *helped(rows), *sources(rows))
    return replace(filled, notes=(*filled.notes, *seen), noise=realised_noise(rows))


def realised_noise(rows: Rows) -> tuple[str, ...]:
    """Percent of wrong given labels in each column, the mean over seeds: it differs from the nominal rate.

    If rows have different data, as centralized ones may, the smallest and the largest mean.
    """
    return tuple(_noise(cells) for cells in zip(*rows.values(), strict=True))


def _noise(cells: Sequence[Sequence[Ended]]) -> str:
    shares = [[run.metrics.get("noise_given") for run in cell] for cell in cells]
    means = sorted(fmean(numbers) for cell in shares if (numbers := [x for x in cell if is_number(x)]))
    return _span([f"{100 * mean:.1f}" for mean in means]) if means else ""


def _ended(plan: Plan, place: Place) -> Iterator[Ended]:
    for run in place.runs:
        if plan.state(run) == "finished" and not isinstance(written := plan.written(run), str):
            yield Ended(run.identity.folder, run.identity.trainings, written.record, written.last("evaluation"))


def endings(rows: Rows) -> list[str]:
    """How many runs of each row trained less than their budget: methods may stop early, or train fewer clients."""
    parts = []
    for label, cells in rows.items():
        runs = _once(cells)
        counted = [(run.record.participations, run.planned) for run in runs]
        short = [(made, planned) for made, planned in counted if isinstance(made, int) and made < planned]
        if short:
            made, planned = (_span([str(n) for n in sorted(side)]) for side in zip(*short, strict=True))
            parts.append(f"{len(short)} of {len(runs)} of “{label}” ({made} of {planned})")
    return [f"Runs that ended with fewer local trainings than their budget: {', '.join(parts)}."] if parts else []


def alike(columns: Sequence[str], rows: Rows, no_effect: Mapping[str, str]) -> list[str]:
    """The rows whose runs agree in every measurement: without a note, readers would suspect a mistake.

    Args:
        columns: the labels of the columns.
        rows: the runs.
        no_effect: as in the table: what explains it if a metric is 0 in all of them.
    """
    equal: dict[tuple[str, ...], list[int]] = {}  # labels -> columns
    for j in range(len(columns)):
        numbers = {label: tuple(run.numbers for run in cells[j]) for label, cells in rows.items()}
        for labels in group_by_key((of, label) for label, of in numbers.items() if of and all(of)).values():
            if len(labels) > 1:
                equal.setdefault(tuple(labels), []).append(j)
    return [_agree(labels, where, columns, rows, no_effect) for labels, where in equal.items()]


def _agree(
    labels: Sequence[str], where: Sequence[int], columns: Sequence[str], rows: Rows, no_effect: Mapping[str, str]
) -> str:
    runs = [run for label in labels for j in where for run in rows[label][j]]
    same = all(rows[label][j] == rows[labels[0]][j] for label in labels for j in where)
    every = all(j in where for label in labels for j, cell in enumerate(rows[label]) if cell)
    *others, last = (f"“{label}”" for label in labels)
    sentence = f"{', '.join(others)} and {last} are " + (
        "the same runs" if same else "different runs that agree to the last bit"
    )
    sentence += " in every column" if every else f" in {', '.join(columns[j] for j in where)}"
    why = [] if same else [w for key, w in no_effect.items() if all(run.metrics.get(key) == 0 for run in runs)]
    return "; ".join([sentence, *why]) + "."


def estimates(rows: Rows) -> list[str]:
    """For rows that estimate client quality: the rank correlation of the estimates with the truth."""

    def span(runs: Sequence[Ended]) -> list[str]:
        numbers = sorted(number for run in runs if isinstance(number := run.metrics.get(CORRELATION), float))
        return [_span([f"{number:.2f}" for number in numbers]).replace("-", "−")] if numbers else []

    parts = [f"{text} in {labels}" for text, labels in _said(rows, span)]
    head = "Rank correlation of clients' estimated with their true quality, 0 by chance"
    return [f"{head}: {'; '.join(parts)}."] if parts else []


def given(rows: Rows) -> list[str]:
    """The rows whose methods were given the noise rate, with its origin: other methods do not have it."""

    def origins(runs: Sequence[Ended]) -> list[str]:
        return sorted({run.record.given_origin or "origin unknown" for run in runs if run.record.given})

    parts = [f"{labels} ({origin})" for origin, labels in _said(rows, origins)]
    return [f"Given the noise rate, which a real federation does not know: {'; '.join(parts)}."] if parts else []


def helped(rows: Rows) -> list[str]:
    """The rows whose methods were given clean samples, which the server of other methods does not use."""

    def numbers(runs: Sequence[Ended]) -> list[str]:
        return [f"{number:,}" for number in sorted({run.record.clean_samples for run in runs} - {0})]

    parts = [f"{number} to {labels}" for number, labels in _said(rows, numbers)]
    head = "Given clean samples of the test set, on which no model of the table is tested"
    return [f"{head}: {'; '.join(parts)}."] if parts else []


def _said(rows: Rows, say: Callable[[Sequence[Ended]], Iterable[str]]) -> Iterator[tuple[str, str]]:
    """Each text that ``say`` gives of the runs of a row, with the labels of those rows."""
    texts = group_by_key((text, f"“{label}”") for label, cells in rows.items() for text in say(_once(cells)))
    yield from ((text, ", ".join(labels)) for text, labels in texts.items())


def sources(rows: Rows) -> list[str]:
    """How many runs used data other than the published files, and which, according to their records."""
    runs = _once([cell for cells in rows.values() for cell in cells])
    used = [(run.record.config.get("dataset", {}), run.record.data or "") for run in runs]
    names = [(data, (str(data.get("name")), digest)) for data, digest in used]
    unverified = Counter(name for data, name in names if data.get("verify") is False)
    folders = Counter(name for data, name in names if recorded_name(str(data.get("_target_"))) == FOLDER)
    files = "files that were not compared with the published ones (dataset.verify=false)"
    return [
        f"{number} of {len(runs)} runs took {name} from {origin}: images that went through JPEG, for one, are not "
        f"the published ones.{f' The digest of these data is {digest}.' if digest else ''}"
        for times, origin in ((unverified, files), (folders, "a folder of images"))
        for (name, digest), number in sorted(times.items())
    ]


def _once(cells: Sequence[Sequence[Ended]]) -> list[Ended]:
    """The distinct runs of ``cells``."""
    return list({run.folder: run for cell in cells for run in cell}.values())


def _span(texts: Sequence[str]) -> str:
    """``first to last``, or the text itself if both are equal."""
    return " to ".join(dict.fromkeys((texts[0], texts[-1])))
