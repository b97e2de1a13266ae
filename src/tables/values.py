"""The number that a run has for a cell, from what it wrote down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from src.tables.table import NEVER, Column, Metric

TO_REACH = re.compile(r"participations_to_(\d+)")
"""Client participations until the test accuracy is first so many percent (FedCorr, Tables 11 to 13)."""


def value(record: Mapping[str, Any], folder: Path, metric: Metric, column: Column) -> float | None:
    """The number of a finished run in the metric's unit; None where the run has none, NEVER for a target not reached.

    Looked for among the record's metrics, then in the last evaluation and the last round of ``metrics.jsonl``. Shares
    become percent where that is the unit.
    """
    key = column.key or metric.key
    if found := TO_REACH.fullmatch(key):
        return reaching(evaluations(folder), int(found[1]) / 100)
    number = record.get("metrics", {}).get(key)
    if number is None:
        lines = (last(folder, kind) for kind in ("evaluation", "round"))
        number = next((line[key] for line in lines if line.get(key) is not None), None)
    if not isinstance(number, int | float):
        return None
    return float(number) * (100.0 if metric.unit == "%" else 1.0)


def without(metric: Metric, column: Column) -> str:
    """Why a finished run may have no number for the cell."""
    key = column.key or metric.key
    return f"the run wrote down no {key}; if it was made for another table, remove its folder and run this one"


def evaluations(folder: Path) -> list[dict[str, Any]]:
    """A run's evaluations in order."""
    return list(_lines(folder, "evaluation"))


def reaching(lines: Sequence[Mapping[str, Any]], target: float) -> float | None:
    """Client participations until the first evaluation with this accuracy in [0, 1]; None where there are none."""
    reached = (float(line["participations"]) for line in lines if line["accuracy"] >= target)
    return next(reached, NEVER if lines else None)


def last(folder: Path, kind: str) -> dict[str, Any]:
    """The last ``evaluation`` or ``round`` of a run; empty where there is none."""
    return next(_lines(folder, kind, last=True), {})


def _lines(folder: Path, kind: str, *, last: bool = False) -> Iterator[dict[str, Any]]:
    """The evaluations, or the rounds, in order, or the last one alone."""
    try:
        lines = (folder / "metrics.jsonl").read_text().splitlines()
    except OSError:
        return
    for line in reversed(lines) if last else lines:
        with suppress(ValueError):  # a damaged line
            row = json.loads(line)
            if row["kind"] == kind:
                yield row
                if last:
                    return
