"""What the folders of runs hold, each read once: records, curves and figures; and where all of it came from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flnl.core.errors import UserError
from flnl.figures import curves
from flnl.tables import run_record
from flnl.tables.results import Cell, Filled, Run

ACCURACIES = {"best": "best", "last": "last", "mean_last_10": "mean of the last 10"}
"""Of test accuracy, by their names in a run's record: papers differ in which they mean."""
RECORDS = "runs"
"""The folder of runs' records."""


@dataclass(frozen=True)
class Evidence:
    """The folders, each read once. Nothing rendered links to them: a clone of the project has none."""

    _records: dict[Path, Mapping[str, Any]] = field(default_factory=dict)
    _written: dict[Path, run_record.Written | None] = field(default_factory=dict)
    _curves: dict[Path, tuple[curves.Curve, ...]] = field(default_factory=dict)

    def record(self, folder: Path) -> Mapping[str, Any]:
        """A run's ``result.json``; empty where there is none."""
        if folder not in self._records:
            self._records[folder] = run_record.record(folder) or {}
        return self._records[folder]

    def written(self, folder: Path) -> run_record.Written | None:
        """All that a finished run has written down; None where some of it is damaged."""
        if folder not in self._written:
            try:
                self._written[folder] = run_record.read(folder)
            except UserError:  # which the cell says
                self._written[folder] = None
        return self._written[folder]

    def curves(self, cell: Cell) -> list[curves.Curve]:
        """Of the runs of a cell that have come to their end, over seeds."""
        found: list[curves.Curve] = []
        for run in cell.runs:
            if run.state == "finished":
                if run.folder not in self._curves:
                    (row,) = curves.read([("", [run.folder])])
                    self._curves[run.folder] = tuple(row.curves)
                found += self._curves[run.folder]
        return found

    def recorded(self, run: Run) -> str | None:
        """The file with the record of a finished run, beside the rendered tables; None where its own is damaged."""
        return f"{RECORDS}/{run.folder.name}.json" if run.state == "finished" and self.written(run.folder) else None

    def accuracies(self, folder: Path) -> str:
        """A run's accuracies, each named; empty where none is recorded."""
        metrics = self.record(folder).get("metrics") or {}
        known = ((name, metrics.get(key)) for key, name in ACCURACIES.items())
        return ", ".join(f"{name} {100 * value:.2f} %" for name, value in known if isinstance(value, float))

    def provenance(self, tables: Iterable[Filled]) -> dict[str, str]:
        """Of all finished runs behind ``tables``: how many, when, of which commits, with what and in what time."""
        runs = [run for table in tables for row in table.cells for cell in row for run in cell.runs]
        folders = dict.fromkeys(run.folder for run in runs if run.state == "finished")
        records = [record for folder in folders if (record := self.record(folder))]
        days = sorted({_day(r["started"]) for r in records if isinstance(r.get("started"), int | float)})
        seconds = sum(r["wall_time_s"] for r in records if isinstance(r.get("wall_time_s"), int | float))
        versions = Counter(f"{k} {v}" for r in records for k, v in (r.get("versions") or {}).items())
        said = {
            "runs": str(len(folders)),
            "started": days[0] if len(days) == 1 else f"{days[0]} to {days[-1]}" if days else "",
            "commit": _counted(str(r["commit"]) for r in records if r.get("commit")),
            "device": _counted(str(r["device"]) for r in records if r.get("device")),
            "executor": _counted(_name(r["executor"]) for r in records if r.get("executor")),
            "wall time, all runs": f"{seconds / 3600:.2f} h" if seconds else "",
            "versions": ", ".join(sorted(versions)),
        }
        return {name: text for name, text in said.items() if text}

    def origin(self, tables: Iterable[Filled]) -> str:
        """The same in a sentence: how many runs, when and of which commit."""
        found = self.provenance(tables)
        if found["runs"] == "0":
            return "None of its runs has come to its end yet."
        words = (found["runs"] + (" run" if found["runs"] == "1" else " runs"), found.get("started"))
        commit = f", commit {found['commit']}" if "commit" in found else ""
        return f"Made of {' of '.join(word for word in words if word)}{commit}."


def _day(started: float) -> str:
    return datetime.fromtimestamp(started, UTC).date().isoformat()


def _name(part: object) -> str:
    """Of what was chosen: a word, or a mapping that has one."""
    return str(part.get("name", part) if isinstance(part, Mapping) else part)


def _counted(found: Iterable[str]) -> str:
    """What there is, with its number where it is not the same everywhere."""
    times = Counter(found)
    if len(times) == 1:
        return next(iter(times))
    return ", ".join(f"{text} ({n} runs)" for text, n in sorted(times.items()))
