"""The files of the runs behind tables, each read once: records and curves; what the runs cost, and their origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from pathlib import Path
from statistics import fmean

from flnl.console.words import counted
from flnl.core.errors import UserError
from flnl.figures import curves
from flnl.instruments.compare.table import COSTS, Column
from flnl.instruments.tables import run_record
from flnl.instruments.tables.render.sheet import DASH
from flnl.instruments.tables.results import Cell, Filled, Run
from flnl.record.run import RunRecord

ACCURACIES = {"best": "best", "last": "last", "mean_last_10": "mean of the last 10"}
"""The test accuracies of a run's record, with their display names: papers differ in which one they report."""

COST_HEADING = "What a run costs, mean over the finished runs of a row"
NEW = {"training_passes", "cpu_time_s", "peak_memory"}
"""Records of early versions have none of these: of them there is no table."""

Costs = Sequence[Sequence[str]]
"""A table: its heading, and for each row its label and its means."""


class Evidence:
    """Reads each run's folder once. Rendered files do not link to these folders: a clone of the project lacks them."""

    def __init__(self) -> None:
        self.record = cache(_record)
        self.written = cache(_written)
        self._curves = cache(_curves)

    def curves(self, cell: Cell) -> list[curves.Curve]:
        """The curves of a cell's finished runs, in the order of seeds."""
        return [one for run in cell.runs if run.state == "finished" for one in self._curves(run.folder)]

    def recorded(self, run: Run) -> str | None:
        """What rendered tables call a finished run, the name of its folder; None if the run is damaged."""
        return run.folder.name if run.state == "finished" and self.written(run.folder) else None

    def lines(self, tables: Iterable[Filled]) -> dict[str, str]:
        """The lines of ``runs.jsonl`` of all finished runs behind ``tables``, by name."""
        return {
            name: run_record.line(run.folder, run.command, run.seed, written)
            for table in tables
            for run in table.runs
            if (name := self.recorded(run)) and (written := self.written(run.folder))
        }

    def accuracies(self, folder: Path) -> str:
        """A run's accuracies with their names, as one text; empty if none is recorded."""
        metrics = self.record(folder).metrics
        known = ((name, metrics.get(key)) for key, name in ACCURACIES.items())
        return ", ".join(f"{name} {100 * value:.2f} %" for name, value in known if isinstance(value, float))

    def costs(self, filled: Filled) -> Costs | None:
        """The mean costs of each row's runs, a dash where no record has one; None if no record has more than a time."""
        records = [
            [self.record(run.folder) for cell in cells for run in cell.runs if run.state == "finished"]
            for cells in filled.cells
        ]
        every = [record for of_row in records for record in of_row]
        known = {key: cost for key, cost in COSTS.items() if any(cost.value(record) is not None for record in every)}
        if not known.keys() & NEW:
            return None
        rows = (
            [row.label, *(_mean(cost, of_row) for cost in known.values())]
            for row, of_row in zip(filled.table.rows, records, strict=True)
        )
        return [["", *(cost.heading for cost in known.values())], *rows]

    def provenance(self, tables: Iterable[Filled]) -> dict[str, str]:
        """A summary of all finished runs behind ``tables``: count, dates, commits, devices, time and versions."""
        runs = [run for table in tables for run in table.runs]
        folders = dict.fromkeys(run.folder for run in runs if run.state == "finished")
        records = [self.record(folder) for folder in folders]
        started = (datetime.fromtimestamp(one.started, UTC) for one in records if one.started is not None)
        days = sorted({time.date().isoformat() for time in started})
        seconds = sum(record.wall_time_s or 0.0 for record in records)
        made = [record.processes for record in records]
        versions = {f"{k} {v}" for one in chain(*made) for k, v in one.versions.items()}
        summary = {
            "runs": str(len(folders)),
            "started": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "",
            "commit": _counted(_each(made, lambda one: one.commit), len(made)),
            "device": _counted(_each(made, lambda one: one.device), len(made)),
            "executor": _counted(_each(made, lambda one: one.executor), len(made)),
            "wall time, all runs": f"{seconds / 3600:.2f} h" if seconds else "",
            "versions": ", ".join(sorted(versions)),
        }
        return {name: text for name, text in summary.items() if text}

    def origin(self, tables: Iterable[Filled]) -> str:
        """The origin of ``tables`` as a sentence: how many runs, when and at which commit."""
        tables = list(tables)
        summary = self.provenance(tables)
        if not any(table.runs for table in tables):
            return "Nothing of it can run at this scale."
        if summary["runs"] == "0":
            return "None of its runs has come to its end yet."
        runs = (summary["runs"] + (" run" if summary["runs"] == "1" else " runs"), summary.get("started"))
        commit = f", commit {summary['commit']}" if "commit" in summary else ""
        return f"Made of {' of '.join(word for word in runs if word)}{commit}."


def _record(folder: Path) -> RunRecord:
    """A run's record; empty if it has none."""
    return run_record.record(folder) or RunRecord()


def _written(folder: Path) -> run_record.Written | None:
    """The files of a finished run; None if they are damaged, which the cell's footnote reports."""
    try:
        return run_record.read(folder)
    except UserError:
        return None


def _curves(folder: Path) -> Sequence[curves.Curve]:
    (row,) = curves.read([("", [folder])])
    return row.curves


def _mean(cost: Column, records: Sequence[RunRecord]) -> str:
    values = [number for record in records if (number := cost.value(record)) is not None]
    if not values:
        return DASH
    mean = fmean(values)
    return f"{mean:,.0f}" if mean >= 100 or mean.is_integer() else f"{mean:.1f}"


def _each(made: Iterable[Iterable[RunRecord]], read: Callable[[RunRecord], object]) -> Iterator[str]:
    """What the processes of each run say, once for each run."""
    for processes in made:
        yield from dict.fromkeys(_name(said) for one in processes if (said := read(one)))


def _name(part: object) -> str:
    """The name of a part: a text, or the ``name`` of a mapping."""
    return str(part.get("name", part) if isinstance(part, Mapping) else part)


def _counted(texts: Iterable[str], runs: int) -> str:
    """The distinct texts; with the number of runs of each if there are several, which may be more than ``runs``."""
    times = Counter(texts)
    if len(times) == 1:
        return next(iter(times))
    of_each = ", ".join(f"{text} ({counted(n, 'run')})" for text, n in sorted(times.items()))
    return f"{of_each}; a run that went on with another counts at each" if times.total() > runs else of_each
