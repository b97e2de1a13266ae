"""The number that a run has for a cell, from what it wrote down."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from flnl.tables.run_record import Row, Written
from flnl.tables.table import NEVER, Column, Metric

TO_REACH = re.compile(r"participations_to_(\d+)")
"""Client participations until the test accuracy is first so many percent (FedCorr, Tables 11 to 13)."""


def value(run: Written, metric: Metric, column: Column) -> float | None:
    """The number of a finished run in the metric's unit; None where the run has none, NEVER for a target not reached.

    Looked for among the record's metrics, then in the last evaluation and the last round of ``metrics.jsonl``. Shares
    become percent where that is the unit.
    """
    key = column.key or metric.key
    if found := TO_REACH.fullmatch(key):
        return reaching(run.evaluations, int(found[1]) / 100)
    places = (run.metrics, run.last("evaluation"), run.last("round"))
    number = next((place[key] for place in places if place.get(key) is not None), None)
    if not isinstance(number, int | float) or not math.isfinite(number):
        return None
    return float(number) * (100.0 if metric.unit == "%" else 1.0)


def without(metric: Metric, column: Column) -> str:
    """Why a finished run may have no number for the cell."""
    key = column.key or metric.key
    return f"the run wrote down no {key}; if it was made for another table, remove its folder and run this one"


def reaching(lines: Sequence[Row], target: float) -> float | None:
    """Client participations until the first evaluation with this accuracy in [0, 1]; None where there are none."""
    reached = (float(line["participations"]) for line in lines if line["accuracy"] >= target)
    return next(reached, NEVER if lines else None)
