"""Warnings about a run whose method may have harmed labels or model: what they look at, and from when on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

MOST = 0.5
"""Share of the labels above which a method has changed most of them."""
MEAN_OF = 5
"""Number of evaluations whose mean accuracy is compared: one alone is too noisy."""
FALL = 0.05
"""Fall of the test accuracy above which a run warns: five points."""

LEAVE_ALONE = "compare with a method that uses labels as they are"


def first_correction(rows: Sequence[Mapping[str, Any]]) -> int | None:
    """The round after which the method first acted on its judgement of labels; None if it never did.

    That is the first round in which clients changed labels, or the first evaluation that has suspects if it is
    earlier: methods such as sample selection change no label that a client keeps.

    Args:
        rows: the lines of ``metrics.jsonl``, in order.
    """
    for row in rows:
        if (row.get("correction") or {}).get("relabelled"):
            return int(row["round"])
        if row["kind"] == "evaluation" and row.get("suspected"):
            return max(int(row["round"]) - 1, 0)
    return None


def most_changed(changed: int, labels: int) -> str | None:
    """A warning if more than half of the labels were changed, whether or not they were wrong."""
    if changed <= MOST * labels:
        return None
    return f"the method has changed {changed:,} of {labels:,} labels, which is most of them; {LEAVE_ALONE}"


def accuracy_fell(evaluations: Sequence[Mapping[str, Any]], corrected: int) -> str | None:
    """A warning if the test accuracy fell after the first correction and has not recovered at the end.

    The mean accuracy of the last five evaluations is compared with the best mean of five consecutive ones of which one
    at least is from before the correction (or the very first ones, if none is), and that end before the last five. A
    fall of more than five points counts. Means, because the accuracy of a round varies by some points; the best one,
    because a model that is still learning is not what the correction should be measured by; no later one, because a
    peak that the correction itself has brought about is no reason to blame it when the model memorises labels at the
    end. Runs with fewer than ten evaluations are not judged.

    The warning names the stage since which no evaluation has come within five points: what else began with it, such as
    another learning rate or a new start, may be the cause.

    Args:
        evaluations: the evaluations in order, with ``round``, ``stage`` and ``accuracy`` in [0, 1].
        corrected: number of rounds after which the labels were first corrected.
    """
    accuracy = np.array([row["accuracy"] for row in evaluations], np.float64)
    if len(accuracy) < 2 * MEAN_OF:
        return None
    means = np.convolve(accuracy, np.full(MEAN_OF, 1 / MEAN_OF), mode="valid")  # by the first evaluation of each
    last = len(accuracy) - 2 * MEAN_OF  # the first evaluation of the last mean that has none of the last five
    after = sum(row["round"] <= corrected for row in evaluations)  # the first evaluation after the correction
    before, end = float(means[: max(min(after - 1, last), 0) + 1].max()), float(means[-1])
    if before - end <= FALL:
        return None
    below = int(np.argmin((accuracy < before - FALL)[::-1]))  # number of evaluations at the end that all are
    lost = evaluations[-max(below, 1)]
    return (
        f"the test accuracy has fallen since the method began to suspect or change labels (round {corrected + 1}), "
        f"from {100 * before:.1f} % to {100 * end:.1f} % (means of {MEAN_OF} evaluations), for good in round "
        f"{lost['round']}, stage {lost['stage']}; {LEAVE_ALONE}"
    )


def more_wrong(metrics: Mapping[str, Any], labels: int) -> str | None:
    """A warning if more labels are wrong at the end than as given; None if the truth is unknown."""
    given, final = (metrics.get(name) for name in ("noise_given", "noise_final"))
    if given is None or final is None or final <= given:
        return None
    return (
        f"the correction has left more wrong labels than it found: {round(final * labels):,} instead of "
        f"{round(given * labels):,} of {labels:,}; {LEAVE_ALONE}"
    )
