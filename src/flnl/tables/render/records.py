"""A compact record of a run: its numbers and the command that reproduces it, for readers without its folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from flnl.compare.runs import shown
from flnl.tables.render.evidence import Evidence
from flnl.tables.results import Filled, Run
from flnl.tables.run_record import CURVE, Row, Written

ESSENTIAL = (
    "key",
    "status",
    "data",
    "federation",
    "contents",
    "given",
    "given_origin",
    "clean_samples",
    "commit",
    "versions",
    "machine",
    "device",
    "executor",
    "threads",
    "started",
    "wall_time_s",
    "rounds",
    "acts_from",
    "participations",
    "bytes",
    "training_passes",
    "forward_passes",
    "optimizer_steps",
    "cpu_time_s",
    "peak_memory",
    "peak_gpu_memory",
    "left_out",
    "metrics",
)
"""The keys copied from ``result.json``; command and commit determine the configuration."""

OTHERWISE = ("commit", "versions", "machine", "device", "executor", "threads")
"""The keys of a process that computed a part of a run, as far as they may differ from the last one's."""


def files(tables: Iterable[Filled], evidence: Evidence) -> dict[str, str]:
    """The records of all finished runs behind ``tables``: text by file name."""
    runs = (run for table in tables for row in table.cells for cell in row for run in cell.runs)
    return {
        name: text(run, written)
        for run in runs
        if (name := evidence.recorded(run)) and (written := evidence.written(run.folder))
    }


def text(run: Run, written: Written) -> str:
    """The JSON text of one run, a line per key, numbers unrounded: every value that a cell can show.

    ``evaluation`` and ``round`` hold the last line of each kind, ``evaluations`` the accuracies of all by stage,
    ``earlier`` the processes before the last of a run that was resumed.
    ``flnl tables run records=FOLDER`` (``flnl.tables.restore``) makes a run's folder of it again.
    """
    record = written.record
    fields = {
        "command": run.command,
        "seed": run.seed,
        "folder": shown(run.folder),
        **{key: record[key] for key in ESSENTIAL if key in record},
        **({"earlier": earlier(record)} if record.get("earlier") else {}),
        **{kind: numbers(written.last(kind)) for kind in ("evaluation", "round")},
        "evaluations": by_stage(written.evaluations),
    }
    lines = (f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in fields.items())
    return "{" + ",\n ".join(lines) + "}\n"


def earlier(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The earlier processes of a resumed run: the round each came to, and what was not as in the last one."""
    return [
        {
            "rounds": one.get("rounds"),
            **{key: one[key] for key in OTHERWISE if one.get(key, record.get(key)) != record.get(key)},
        }
        for one in record["earlier"]
    ]


def numbers(line: Mapping[str, Any]) -> dict[str, float]:
    """The numbers of a line of ``metrics.jsonl``, without its lists of one number per client."""
    return {key: value for key, value in line.items() if isinstance(value, int | float)}


def by_stage(evaluations: Sequence[Row]) -> dict[str, dict[str, list[float]]]:
    """Round, client participations until then, and accuracy in [0, 1] of all evaluations, by the stage's name."""
    stages: dict[str, dict[str, list[float]]] = {}
    for row in evaluations:
        columns = stages.setdefault(str(row.get("stage")), {key: [] for key in CURVE})
        for key in CURVE:
            columns[key].append(row[key])
    return stages
