"""Read the files of a finished run, and check all of them before using any number."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flnl.compare.runs import shown
from flnl.core.errors import UserError
from flnl.storage import lines
from flnl.storage.closing import contradiction
from flnl.storage.input_file import parse_json, read_json_file
from flnl.storage.lines import METRICS, DamagedLinesError
from flnl.storage.records import RESULT, read_record

PARTS: Mapping[str, Any] = {
    "metrics": Mapping,
    "config": Mapping,
    "versions": Mapping,
    "wall_time_s": int | float,
    "participations": int | float,
}
"""The expected types of the parts of ``result.json`` that tables read."""
NUMBERS: Mapping[str, Sequence[str]] = {"evaluation": ("accuracy", "participations")}
"""The numbers that a line of ``metrics.jsonl`` must have, by its kind."""

CURVE = ("round", "participations", "accuracy")
"""The numbers of an evaluation that a compact record keeps, for all evaluations."""

RECORDS = "runs"
"""The folder of compact records, beside rendered tables."""
RECORD = re.compile(r"[0-9a-f]{16}\.json")
"""File names of compact records: the name of the run's folder."""

REPEAT = "remove the folder and run the table again"

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Written:
    """``result.json`` of a finished run, and the lines of its ``metrics.jsonl`` in order."""

    record: Row
    rows: Sequence[Row]

    @property
    def metrics(self) -> Row:
        """The closing numbers."""
        metrics: Row = self.record["metrics"]
        return metrics

    @property
    def evaluations(self) -> list[Row]:
        """The evaluations: each has ``accuracy`` in [0, 1] and the client ``participations`` until then."""
        return [row for row in self.rows if row["kind"] == "evaluation"]

    def last(self, kind: str) -> Row:
        """The last line of a kind, ``evaluation`` or ``round``; empty if there is none."""
        return next((row for row in reversed(self.rows) if row["kind"] == kind), {})


@dataclass(frozen=True)
class Compact:
    """A compact record, and the lines of ``metrics.jsonl`` that it has: of every evaluation, with one for its round."""

    record: Row
    rows: Sequence[Row]


def compact(file: Path) -> Compact:
    """Read the compact record of a run, and check it.

    Raises:
        UserError: if it is damaged, its closing numbers are not those of its evaluations, or it lacks these.
    """
    repair = "restore it from where it is from, or remove it"
    try:
        held = read_json_file(file)
        if "evaluations" not in held:
            raise UserError(f"{file} lacks the accuracies of its evaluations; render its tables again where they ran")
        rows = [*_lines(held)]
        whole = isinstance(held["key"], str) and isinstance(held["status"], str) and isinstance(held["metrics"], dict)
        if not rows or not whole:
            raise TypeError
        if not all(isinstance(row[key], int | float) for row in rows for key in CURVE if key in row):
            raise TypeError
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise UserError(f"{file} is damaged; {repair}") from None
    if (fault := contradiction(held, rows)) is not None:
        raise UserError(f"{file} is damaged: {fault}; {repair}")
    return Compact(held, rows)


def _lines(record: Mapping[str, Any]) -> Iterator[Row]:
    evaluations = [
        {"stage": stage, **dict(zip(CURVE, row, strict=True))}
        for stage, columns in record["evaluations"].items()
        for row in zip(*(columns[key] for key in CURVE), strict=True)
    ]
    last = len(evaluations) - 1
    for i, row in enumerate(evaluations):
        place = {key: value for key, value in row.items() if key != "accuracy"}
        yield {"kind": "round", **place, **(record["round"] if i == last else {})}
        yield {"kind": "evaluation", **row, **(record["evaluation"] if i == last else {})}


def record(folder: Path) -> dict[str, Any] | None:
    """A run's ``result.json`` without parts of a wrong type; None if the file does not exist.

    Raises:
        UserError: if the file exists but is not the record of a run.
    """
    contents = read_record(folder)
    if contents is None:
        if (folder / RESULT).exists():
            raise _damaged(folder, f"its {RESULT} cannot be read as that of a run")
        return None
    return {name: part for name, part in contents.items() if isinstance(part, PARTS.get(name, object))}


def read(folder: Path) -> Written:
    """Read the files of a finished run.

    Raises:
        UserError: if any of them is damaged: the remaining lines could give a wrong number.
    """
    result = record(folder)
    if result is None or "metrics" not in result:
        raise _damaged(folder, f"{RESULT} has no metrics")
    try:
        (folder / METRICS).stat()
        text = lines.read(folder, METRICS, result).decode()
    except DamagedLinesError as error:
        raise UserError(f"{error}; {REPEAT}") from None
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"{METRICS} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        row = _row(line)
        if row is None:
            raise _damaged(folder, f"line {number} of {METRICS} is damaged")
        rows.append(row)
    try:
        lines.check_closing(folder, result, rows)
    except DamagedLinesError as error:
        raise UserError(f"{error}; {REPEAT}") from None
    return Written(result, rows)


def _row(line: str) -> Row | None:
    """Parse a line of ``metrics.jsonl``; None if it is not as a run writes it."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str):
        return None
    return row if all(isinstance(row.get(key), int | float) for key in NUMBERS.get(row["kind"], ())) else None


def _damaged(folder: Path, what: str) -> UserError:
    return UserError(f"{shown(folder)}: {what}; {REPEAT}")
