"""Histories of made-up runs: what a run warns of, and what it does not."""

from collections.abc import Sequence
from typing import Any

import pytest

from flnl.evaluation.correction_warnings import accuracy_fell, first_correction, more_wrong, most_changed


def history(*parts: tuple[int, float]) -> list[dict[str, Any]]:
    """Evaluations after rounds 1, 2, ...: so many of each accuracy, one after the other."""
    accuracies = [accuracy for count, accuracy in parts for _ in range(count)]
    return [
        {"kind": "evaluation", "round": i, "stage": "usual" if i <= 20 else "final", "accuracy": value}
        for i, value in enumerate(accuracies, start=1)
    ]


def test_a_fall_after_the_correction_that_stays_is_warned_of() -> None:
    line = accuracy_fell(history((10, 0.67), (40, 0.33)), 10)
    assert line is not None
    assert "(round 11), from 67.0 % to 33.0 % (means of 5 evaluations), for good in round 11, stage usual" in line


@pytest.mark.parametrize(
    ("parts", "where"),
    [
        (((20, 0.93), (10, 0.10)), "round 21, stage final"),  # with the first round of another stage
        (((14, 0.93), (2, 0.10), (4, 0.93), (10, 0.10)), "round 21, stage final"),  # it had recovered
        (((14, 0.93), (16, 0.10)), "round 15, stage usual"),
        (((14, 0.93), (15, 0.10), (1, 0.93)), "round 30, stage final"),  # one evaluation at the end is no recovery
    ],
)
def test_a_fall_is_told_with_its_stage(parts: Sequence[tuple[int, float]], where: str) -> None:
    line = accuracy_fell(history(*parts), 10)
    assert line is not None
    assert f", for good in {where}; " in line


@pytest.mark.parametrize(
    ("parts", "corrected", "warns"),
    [
        (((10, 0.67), (20, 0.33), (5, 0.65)), 10, False),  # recovered
        (((10, 0.67), (20, 0.70), (5, 0.50)), 10, True),  # fell only later, but below what was there before
        (((10, 0.67), (20, 0.625)), 10, False),  # four and a half points
        (((10, 0.67), (20, 0.615)), 10, True),  # five and a half
        (((10, 0.30), (1, 0.40), (20, 0.90), (20, 0.75)), 10, False),  # the peak came after the correction
        (((10, 0.30), (4, 0.90), (20, 0.30)), 10, True),  # the peak came with it: .3 .9 .9 .9 .9
        (((10, 0.90), (20, 0.50)), 0, True),  # corrected before the first evaluation
        (((20, 0.90), (10, 0.50)), 30, True),  # corrected at the end: the mean before is of models without it
        (((5, 0.90), (4, 0.10)), 5, False),  # too short to tell
        (((5, 0.90), (5, 0.10)), 5, True),
        (((4, 0.38), (1, 0.60), (20, 0.38)), 5, False),  # one lucky evaluation is not a level
    ],
)
def test_only_a_lasting_fall_from_around_the_correction_counts(
    parts: Sequence[tuple[int, float]], corrected: int, warns: bool
) -> None:
    assert (accuracy_fell(history(*parts), corrected) is not None) == warns


def test_most_labels_are_more_than_half() -> None:
    assert most_changed(300, 600) is None
    line = most_changed(301, 600)
    assert line is not None
    assert "301 of 600 labels" in line


def test_more_wrong_labels_than_given_are_counted() -> None:
    line = more_wrong({"noise_given": 100 / 600, "noise_final": 107 / 600}, 600)
    assert line is not None
    assert "107 instead of 100 of 600" in line
    assert more_wrong({"noise_given": 100 / 600, "noise_final": 100 / 600}, 600) is None
    assert more_wrong({}, 600) is None, "the truth is unknown"


def rows(*lines: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"kind": "round", **line} if "accuracy" not in line else {"kind": "evaluation", **line} for line in lines]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([{"round": 1}, {"round": 1, "accuracy": 0.5}], None),
        ([{"round": 1, "correction": None}, {"round": 2, "correction": {"relabelled": 0}}], None),
        ([{"round": 1, "correction": {"relabelled": 0}}, {"round": 2, "correction": {"relabelled": 3}}], 2),
        ([{"round": 1, "accuracy": 0.5, "suspected": 0.0}, {"round": 2, "accuracy": 0.5, "suspected": 4.0}], 1),
        ([{"round": 3, "accuracy": 0.5, "suspected": 4.0}, {"round": 9, "correction": {"relabelled": 3}}], 2),
    ],
)
def test_the_first_correction_is_the_first_that_acts(lines: list[dict[str, Any]], expected: int | None) -> None:
    assert first_correction(rows(*lines)) == expected
