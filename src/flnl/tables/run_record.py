"""Read the files of a finished run, and check all of them before using any number."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flnl.compare.runs import shown
from flnl.core.errors import UserError
from flnl.storage import lines
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
        raise UserError(f"{error}; remove the folder and run the table again") from None
    except (OSError, ValueError) as error:
        raise _damaged(folder, f"{METRICS} cannot be read ({getattr(error, 'strerror', None) or error})") from None
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        row = _row(line)
        if row is None:
            raise _damaged(folder, f"line {number} of {METRICS} is damaged")
        rows.append(row)
    return Written(result, rows)


def _row(line: str) -> Row | None:
    """Parse a line of ``metrics.jsonl``; None if it is not as a run writes it."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("kind"), str):
        return None
    return row if all(isinstance(row.get(key), int | float) for key in NUMBERS.get(row["kind"], ())) else None


def _damaged(folder: Path, what: str) -> UserError:
    return UserError(f"{shown(folder)}: {what}; remove the folder and run the table again")
