"""The closing numbers of a run, and whether a record's agree with the lines that they follow from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

CLOSED = ("finished", "stopped")
"""The ends of a run after which its record tells of all of its lines."""
COUNTERS = {"rounds": "round", "participations": "participations"}
"""Keys of a record that stand in the last line, too, and how they are called there."""


def summarise(evaluations: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The accuracies that papers report, from all evaluations in order.

    ``best`` is the maximum over evaluations, an oracle over the test set; ``mean_last_10`` is the mean of the last ten
    evaluations; ``at_best_validation`` is the test accuracy at the first evaluation with the highest validation
    accuracy.
    """
    import numpy as np  # readers that have nothing to check do without it

    accuracies = [e["accuracy"] for e in evaluations]
    if not accuracies:
        return {}
    metrics = {"best": max(accuracies), "last": accuracies[-1], "mean_last_10": float(np.mean(accuracies[-10:]))}
    if all("validation_accuracy" in e for e in evaluations):
        held_out = [e["validation_accuracy"] for e in evaluations]
        metrics["at_best_validation"] = accuracies[int(np.argmax(held_out))]
    return metrics


def same(held: object, value: float | None) -> bool:
    """Whether a file holds a number, but for the last bits: another machine may add up in another order."""
    if not isinstance(held, int | float) or value is None:
        return held is value
    return math.isclose(held, value, rel_tol=1e-9, abs_tol=1e-12)


def contradiction(record: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str | None:
    """What a run's record says of its end that its lines do not, as a phrase; None if they agree.

    Args:
        record: ``result.json``, or a line of ``runs.jsonl`` beside tables.
        rows: the lines of ``metrics.jsonl`` in order, or those that are kept of it.
    """
    metrics = record.get("metrics")
    if record.get("status") not in CLOSED or not isinstance(metrics, Mapping) or not rows:
        return None
    for name, value in summarise([row for row in rows if row.get("kind") == "evaluation"]).items():
        if not same(metrics.get(name, value), value):
            return f"metrics.{name} is {metrics[name]}, and its evaluations give {value}"
    for name, key in COUNTERS.items():
        counted = rows[-1].get(key)
        if not same(record.get(name, counted), counted):
            return f"{name} is {record[name]}, and its last line says {counted}"
    return None
