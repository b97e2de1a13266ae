"""The names of a round's values in loggers and in ``metrics.csv``: ``train/loss``, ``test/accuracy`` and others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flnl.core.numbers import is_number
from flnl.storage.spreadsheet import csv_text

TRAINING = {"loss": "train/loss", "left_out": "train/left_out", "idle": "train/idle"}
"""Values of a line of kind ``round`` in ``metrics.jsonl`` that have another name here."""
TESTED = {
    **{"accuracy": "test/accuracy", "test_loss": "test/loss"},
    **{f"accuracy_{name}": f"test/accuracy_{name}" for name in ("first", "second", "worst_client")},
    **{"validation_accuracy": "validation/accuracy", "validation_loss": "validation/loss"},
    **{"validation_true_accuracy": "validation/true_accuracy"},
}
"""Values of a line of kind ``evaluation``."""
FIRST = ("round", "stage", "participations", "train/loss", "test/accuracy")
"""The first columns of the table."""
NO_VALUES = ("kind", "cohort", "correction")


def of_round(row: Mapping[str, Any], evaluation: Mapping[str, Any] | None = None) -> dict[str, float | str]:
    """The values of a round.

    Args:
        row: the line of the round in ``metrics.jsonl``.
        evaluation: the line of its evaluation, or the evaluation's values; None if there was none.
    """
    values = {TRAINING.get(name, name): value for name, value in row.items() if name not in NO_VALUES}
    corrected = row.get("correction") or {}
    values |= {f"correction/{name}": value for name, value in corrected.items() if is_number(value)}
    scores = {TESTED.get(name, name): value for name, value in (evaluation or {}).items() if name not in NO_VALUES}
    return {**values, **{name: value for name, value in scores.items() if name not in ("round", "stage")}}


def table(lines: Iterable[Mapping[str, Any]]) -> str:
    """``metrics.csv``: a row for each round, with empty cells for what the round has no value of.

    Args:
        lines: those of ``metrics.jsonl``, in order.
    """
    rounds: dict[int, Mapping[str, Any]] = {}
    evaluations: dict[int, Mapping[str, Any]] = {}
    for line in lines:
        (evaluations if line["kind"] == "evaluation" else rounds)[line["round"]] = line
    rows = [of_round(row, evaluations.get(number)) for number, row in rounds.items()]
    known = dict.fromkeys(name for row in rows for name in row)
    columns = [*FIRST, *(name for name in known if name not in FIRST)]
    return csv_text([columns, *([row.get(name) for name in columns] for row in rows)])
