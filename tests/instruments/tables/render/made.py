"""Small tables filled by hand, and runs' folders as rendering reads them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from flnl.instruments.tables.results import Cell, Filled, Run, Scale
from flnl.instruments.tables.table import Column, Metric, Number, Row, Table

ACCURACY = Metric("best test accuracy", "best", "%", True)
SMALL = Scale("small", "digits", ("Images are digits.", "Budgets are 5 % of the paper's."), (1, 2))
PAPER = Scale("paper", "the paper's own setting", (), (1, 2), papers=True)
Given = Mapping[str, Sequence[Sequence[float | None] | str | None]]


def run(seed: int, value: float | None, folder: str = "runs/r", **more: Any) -> Run:
    """A run; finished where it has a value."""
    state: Literal["finished", "absent"] = "absent" if value is None else "finished"
    said: dict[str, Any] = {
        "state": state,
        "log": None,
        "error": None,
        "command": f"flnl 'x={folder}' seed={seed}",
    } | more
    return Run(seed=seed, folder=Path(f"{folder}-{seed}"), value=value, **said)


def cell(papers: Sequence[float | None], values: Sequence[float | None] | str | None, folder: str = "runs/r") -> Cell:
    """A cell of one run a value; a word for what is missing; None for what is not at this scale."""
    numbers = tuple(None if paper is None else Number(paper, 0.5) for paper in papers)
    if isinstance(values, str):
        return Cell(numbers, (), "missing", values)
    if values is None:
        return Cell(numbers, (), "na", "needs images")
    runs = tuple(run(seed, value, folder) for seed, value in enumerate(values, 1))
    there = sum(value is not None for value in values)
    return Cell(numbers, runs, "run" if there == len(values) else "partly" if there else "absent", None)


def table(
    ours: Given,
    papers: Mapping[str, Sequence[float | None]],
    columns: Sequence[str],
    merged: Sequence[Sequence[int]] | None = None,
    *,
    number: str = "1",
    metric: Metric = ACCURACY,
    scale: Scale = SMALL,
    methods: Mapping[str, str] | None = None,
) -> Filled:
    """Rows by label. ``merged`` says which of the paper's columns each rendered one stands for."""
    which = tuple(map(tuple, merged or [[k] for k in range(len(columns))]))
    rendered = tuple(Column(columns[k[0]] if len(k) == 1 else "all", ()) for k in which)
    rows = tuple(
        Row(label, (methods or {}).get(label, label), (), next((v for v in values if isinstance(v, str)), None))
        for label, values in ours.items()
    )
    cells = tuple(
        tuple(
            replace(cell([papers[label][one] for one in k], value, f"runs/{number}-{label}-{j}"), over=metric.over)
            for j, (k, value) in enumerate(zip(which, values, strict=True))
        )
        for label, values in ours.items()
    )
    printed = tuple(tuple(None if x is None else Number(x, 0.5) for x in papers[label]) for label in ours)
    own = Table(
        f"p_{number}", "P", number, "things", metric, 5, rows, tuple(Column(c, ()) for c in columns), printed, ()
    )
    return Filled(own, scale, rendered, which, cells, ())


def recorded(folder: Path, accuracies: Sequence[float], **result: Any) -> None:
    """What a finished run leaves: its record, and evaluations, every 10 participations or as many as it has."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = {"best": max(accuracies), "last": accuracies[-1], "mean_last_10": sum(accuracies) / len(accuracies)}
    record = {
        "key": "k",
        "config": {},
        "status": "finished",
        "started": 1795187623.4,
        "commit": "c0ffee",
        "device": "cpu",
        "executor": {"name": "stacked", "stack": 20},
        "versions": {"torch": "2.13.0"},
        "wall_time_s": 36.0,
        "metrics": metrics,
    }
    (folder / "result.json").write_text(json.dumps(record | result))
    every = result.get("participations", 10 * len(accuracies)) // len(accuracies)
    rows = [
        {"kind": "evaluation", "round": i, "participations": every * i, "accuracy": accuracy}
        for i, accuracy in enumerate(accuracies, 1)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
