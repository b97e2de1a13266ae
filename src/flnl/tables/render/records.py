"""A run in two kilobytes: what its numbers are and how it is made again, for readers who do not have its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

from flnl.compare.runs import shown
from flnl.tables import metric_values
from flnl.tables.render.evidence import Evidence
from flnl.tables.results import Filled, Run
from flnl.tables.run_record import Written
from flnl.tables.table import NEVER

ESSENTIAL = (
    "key",
    "status",
    "federation",
    "commit",
    "versions",
    "device",
    "executor",
    "threads",
    "started",
    "wall_time_s",
    "rounds",
    "participations",
    "bytes",
    "left_out",
    "metrics",
)
"""Of ``result.json``; the configuration is in the command and the commit."""
STEP = 5
"""Percent between the accuracies of which it is said when they were first reached."""


def files(tables: Iterable[Filled], evidence: Evidence) -> dict[str, str]:
    """The record of every finished run behind ``tables``: name of the file, and its text."""
    runs = (run for table in tables for row in table.cells for cell in row for run in cell.runs)
    return {
        name: text(run, found)
        for run in runs
        if (name := evidence.recorded(run)) and (found := evidence.written(run.folder))
    }


def text(run: Run, found: Written) -> str:
    """The file of one run, a line a key, numbers unrounded: all that a cell can be made of.

    ``evaluation`` and ``round`` are the last ones; ``reached`` has by accuracies, in percent, the client participations
    until the first evaluation with them.
    """
    record, evaluations = found.record, found.evaluations
    said = {
        "command": run.command,
        "seed": run.seed,
        "folder": shown(run.folder),
        **{key: record[key] for key in ESSENTIAL if key in record},
        **{kind: numbers(found.last(kind)) for kind in ("evaluation", "round")},
        "reached": {
            str(percent): round(reached)
            for percent in range(STEP, 100, STEP)
            if (reached := metric_values.reaching(evaluations, percent / 100)) not in (None, NEVER)
        },
    }
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in said.items())
    return "{" + ",\n ".join(lines) + "}\n"


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of ``metrics.jsonl``; lists, one number a client, are left out."""
    return {key: value for key, value in line.items() if isinstance(value, int | float)}
