"""The files of the runs behind tables, each read once: records and curves; and a summary of their origin."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any

from flnl.console.words import counted
from flnl.core.errors import UserError
from flnl.figures import curves
from flnl.instruments.tables import run_record
from flnl.instruments.tables.results import Cell, Filled, Run

ACCURACIES = {"best": "best", "last": "last", "mean_last_10": "mean of the last 10"}
"""The test accuracies of a run's record, with their display names: papers differ in which one they report."""


@dataclass(frozen=True)
class Evidence:
    """Reads each run's folder once. Rendered files do not link to these folders: a clone of the project lacks them."""

    _records: dict[Path, Mapping[str, Any]] = field(default_factory=dict)
    _written: dict[Path, run_record.Written | None] = field(default_factory=dict)
    _curves: dict[Path, tuple[curves.Curve, ...]] = field(default_factory=dict)

    def record(self, folder: Path) -> Mapping[str, Any]:
        """A run's ``result.json``; empty if it has none."""
        if folder not in self._records:
            self._records[folder] = run_record.record(folder) or {}
        return self._records[folder]

    def written(self, folder: Path) -> run_record.Written | None:
        """The files of a finished run; None if they are damaged."""
        if folder not in self._written:
            try:
                self._written[folder] = run_record.read(folder)
            except UserError:  # the cell's footnote reports it
                self._written[folder] = None
        return self._written[folder]

    def curves(self, cell: Cell) -> list[curves.Curve]:
        """The curves of a cell's finished runs, in the order of seeds."""
        of_seeds: list[curves.Curve] = []
        for run in cell.runs:
            if run.state == "finished":
                if run.folder not in self._curves:
                    (row,) = curves.read([("", [run.folder])])
                    self._curves[run.folder] = tuple(row.curves)
                of_seeds += self._curves[run.folder]
        return of_seeds

    def recorded(self, run: Run) -> str | None:
        """What rendered tables call a finished run, the name of its folder; None if the run is damaged."""
        return run.folder.name if run.state == "finished" and self.written(run.folder) else None

    def lines(self, tables: Iterable[Filled]) -> dict[str, str]:
        """The lines of ``runs.jsonl`` of all finished runs behind ``tables``, by name."""
        return {
            name: run_record.line(run.folder, run.command, run.seed, written)
            for table in tables
            for row in table.cells
            for cell in row
            for run in cell.runs
            if (name := self.recorded(run)) and (written := self.written(run.folder))
        }

    def accuracies(self, folder: Path) -> str:
        """A run's accuracies with their names, as one text; empty if none is recorded."""
        metrics = self.record(folder).get("metrics") or {}
        known = ((name, metrics.get(key)) for key, name in ACCURACIES.items())
        return ", ".join(f"{name} {100 * value:.2f} %" for name, value in known if isinstance(value, float))

    def provenance(self, tables: Iterable[Filled]) -> dict[str, str]:
        """A summary of all finished runs behind ``tables``: count, dates, commits, devices, time and versions."""
        runs = [run for table in tables for row in table.cells for cell in row for run in cell.runs]
        folders = dict.fromkeys(run.folder for run in runs if run.state == "finished")
        records = [record for folder in folders if (record := self.record(folder))]
        days = sorted({_day(r["started"]) for r in records if isinstance(r.get("started"), int | float)})
        seconds = sum(r["wall_time_s"] for r in records if isinstance(r.get("wall_time_s"), int | float))
        made = [_processes(record) for record in records]
        versions = {f"{k} {v}" for one in chain(*made) for k, v in (one.get("versions") or {}).items()}
        summary = {
            "runs": str(len(folders)),
            "started": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "",
            "commit": _counted(_each(made, "commit")),
            "device": _counted(_each(made, "device")),
            "executor": _counted(_each(made, "executor")),
            "wall time, all runs": f"{seconds / 3600:.2f} h" if seconds else "",
            "versions": ", ".join(sorted(versions)),
        }
        return {name: text for name, text in summary.items() if text}

    def origin(self, tables: Iterable[Filled]) -> str:
        """The origin of ``tables`` as a sentence: how many runs, when and at which commit."""
        summary = self.provenance(tables)
        if summary["runs"] == "0":
            return "None of its runs has come to its end yet."
        runs = (summary["runs"] + (" run" if summary["runs"] == "1" else " runs"), summary.get("started"))
        commit = f", commit {summary['commit']}" if "commit" in summary else ""
        return f"Made of {' of '.join(word for word in runs if word)}{commit}."


def _processes(record: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The processes that computed a run, one after the other; a key that an earlier one lacks is as the last one's."""
    return [*({**record, **earlier} for earlier in record.get("earlier") or ()), record]


def _each(made: Iterable[Iterable[Mapping[str, Any]]], key: str) -> Iterator[str]:
    """What the processes of each run have under ``key``, once for each run."""
    for processes in made:
        yield from dict.fromkeys(_name(one[key]) for one in processes if one.get(key))


def _day(started: float) -> str:
    return datetime.fromtimestamp(started, UTC).date().isoformat()


def _name(part: object) -> str:
    """The name of a part: a text, or the ``name`` of a mapping."""
    return str(part.get("name", part) if isinstance(part, Mapping) else part)


def _counted(texts: Iterable[str]) -> str:
    """The distinct texts; with the number of runs of each if there are several."""
    times = Counter(texts)
    if len(times) == 1:
        return next(iter(times))
    return ", ".join(f"{text} ({counted(n, 'run')})" for text, n in sorted(times.items()))
