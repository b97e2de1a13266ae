"""The value of a cell's metric, read from the files of a finished run."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from flnl.console.suggestions import closest
from flnl.core.numbers import is_number
from flnl.instruments.tables.run_record import Row, Written
from flnl.instruments.tables.table import NEVER, Column, Metric

TO_REACH = re.compile(r"participations_to_(\d+)")
"""Client participations until the test accuracy first reaches this percentage (FedCorr, Tables 11 to 13)."""


def value(run: Written, metric: Metric, column: Column) -> float | None:
    """The value of the metric for a finished run, in the metric's unit.

    The key is looked up in the record's metrics, then in the last evaluation and the last round of ``metrics.jsonl``.
    Shares become percentages if the unit is %.

    Returns:
        The value; NEVER if the run did not reach the target; None if the run has not recorded the metric.
    """
    key = column.key or metric.key
    if match := TO_REACH.fullmatch(key):
        return reaching(run.evaluations, int(match[1]) / 100)
    number = next((place[key] for place in _places(run) if place.get(key) is not None), None)
    if not is_number(number) or not math.isfinite(number):
        return None
    return float(number) * (100.0 if metric.unit == "%" else 1.0)


def early(run: Written, metric: Metric, column: Column) -> str | None:
    """Where the best evaluation of a finished run lies, if that is what its cell shows and its method acts only later.

    Such a number is that of a warm-up. None if it is the method's own, or the record does not say when it acts.
    """
    begins = run.record.acts_from
    if (column.key or metric.key) != "best" or begins is None or not run.evaluations:
        return None
    best = max(run.evaluations, key=lambda line: line["accuracy"])
    if best["round"] >= begins:
        return None
    later = f"; mean of the last 10 evaluations {100 * run.record.metrics['mean_last_10']:.2f} %"
    return f"best after round {best['round']}, before all of the method acts, from round {begins} on{later}"


def without(run: Written, metric: Metric, column: Column) -> str:
    """A note that explains why a finished run has no value for the cell."""
    key = column.key or metric.key
    close = closest(key, {name for place in _places(run) for name, number in place.items() if number is not None})
    if close is not None and close != key:
        return f"the run recorded no {key}, but {close}: name that in the table if it is meant"
    return f"the run recorded no {key}; if it was made for another table, remove its folder and run this one"


def _places(run: Written) -> tuple[Row, ...]:
    """Where a number may be, the first place first."""
    return run.record.metrics, run.last("evaluation"), run.last("round")


def reaching(lines: Sequence[Row], target: float) -> float | None:
    """Client participations until the first evaluation with at least this accuracy, in [0, 1].

    Returns:
        The count; NEVER if no evaluation reached the accuracy; None if there are no evaluations.
    """
    reached = (float(line["participations"]) for line in lines if line["accuracy"] >= target)
    return next(reached, NEVER if lines else None)
