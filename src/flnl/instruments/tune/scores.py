"""The score of a finished run, in the measure that was asked for."""

from __future__ import annotations

from pathlib import Path

from flnl.core.errors import UserError
from flnl.core.numbers import is_number
from flnl.numerics import moments
from flnl.record.lines import DamagedLinesError
from flnl.record.run import RunRecord

VALIDATION = "validation"
HELD_OUT = "eval.validation"
"""The key of the share of each client's samples that ``VALIDATION`` is measured on; none of them is trained on."""
SHARE = 0.1
"""The share that is held out if no other is asked for."""
RESULT = "last"
"""The measure that every finished run has."""
MEASURES = {
    RESULT: "test accuracy at the end",
    "mean_last_10": "mean test accuracy of the last ten evaluations",
    "best": "best test accuracy of all evaluations (an oracle over the test set)",
    VALIDATION: "mean accuracy of the last ten evaluations on held-out samples with noisy labels",
}
ON_TEST_SET = tuple(measure for measure in MEASURES if measure != VALIDATION)
"""The measures that need no held-out samples."""
LAST = 10
MARGIN = "difference of accuracies between 0 and 1, such as 0.05"
"""What a margin is, for messages."""


def score(folder: Path, measure: str) -> float | None:
    """The run's score in [0, 1]; None if it has not finished, or failed.

    Raises:
        DamagedLinesError: if ``metrics.jsonl`` is not as the run wrote it, or gives other closing numbers.
        UserError: if ``VALIDATION`` is asked for and every client has too few samples to hold one out.
    """
    record = RunRecord.read(folder)
    if record is None or not record.finished:
        return None
    if (fault := record.damage()) is not None:
        raise DamagedLinesError(f"{fault}; remove the folder to run it again")
    if measure != VALIDATION:
        value = record.metrics.get(measure)
        return float(value) if is_number(value) else None
    evaluations = record.evaluations[-LAST:]
    if any("validation_accuracy" not in row for row in evaluations):
        raise UserError(f"{folder}: no client has so many samples that a share of them is one: hold out a larger share")
    return moments.mean([row["validation_accuracy"] for row in evaluations])


def share_of(written: str, what: str, option: str = "") -> float:
    """A number above 0 and below 1, from the text that a user gave for an ``option`` such as ``margin=``.

    Raises:
        UserError: if it is no such number; ``what`` says what it should be.
    """
    try:
        share = float(written)
    except ValueError:
        share = 0.0
    if not 0 < share < 1:
        raise UserError(f"{option}{written} is no {what}")
    return share
