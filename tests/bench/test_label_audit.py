"""The benchmark of audits: what it keeps of runs that were made elsewhere."""

from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from bench import label_audit
from bench.label_audit import Case, Number, Row
from bench.whole_runs import read_rows, write_rows


def row(case: Case, precision: float | None) -> Row:
    return Row(
        **asdict(case),
        probabilities="window",
        score="self_confidence",
        prior=0.25,
        errors=7,
        average_precision=precision,
        issues_precision=None,
        issues_recall=None,
        strict_precision=0.5,
        strict_recall=0.25,
        test_accuracy=0.75,
    )


def number(case: Case, expected: float | None) -> Number:
    """Of 20 labels, 4 of which are wrong; the interval is from 1 below the number that is expected to 1 above."""
    known = expected is not None
    low = max((expected or 0) - 1, 0) if known else None
    return Number(
        **asdict(case),
        probabilities="window",
        client=0,
        samples=20,
        wrong=4,
        issues=5,
        expected=expected,
        low=low,
        high=None if low is None else low + 2,
    )


def test_audits_of_runs_that_are_elsewhere_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not made again; those that are here are audited again."""
    elsewhere, here, missing = (Case("mnist", "worst", "flr", seed) for seed in (2, 1, 3))
    there, made = [here], list[Case]()

    def make(case: Case, *_: object) -> None:
        made.append(case)
        if case not in there:
            there.append(case)

    def rows(case: Case, root: Path) -> Iterator[Row]:
        yield row(case, None)

    monkeypatch.setattr(label_audit, "made", lambda root: iter(there))
    monkeypatch.setattr(label_audit, "make", make)
    monkeypatch.setattr(label_audit, "rows", rows)
    monkeypatch.setattr(label_audit, "numbers", lambda case, root: iter([number(case, 4.5)]))
    (tmp_path / here.folder).mkdir(parents=True)
    write_rows(tmp_path / "numbers.csv", Number, [number(elsewhere, None), number(here, None)])
    write_rows(tmp_path / "audits.csv", Row, [row(elsewhere, 0.25), row(here, 0.5)])
    label_audit.main([str(tmp_path), "--images", "mnist", "--noise", "worst", "--methods", "flr"])
    assert made == [here, missing]
    assert read_rows(tmp_path / "audits.csv", Row) == [row(here, None), row(elsewhere, 0.25), row(missing, None)]
    told = [number(here, 4.5), number(elsewhere, None), number(missing, 4.5)]
    assert read_rows(tmp_path / "numbers.csv", Number) == told
    assert "held" in (tmp_path / "audits.md").read_text()


def test_the_share_of_intervals_that_hold_the_number() -> None:
    case = Case("mnist", "fedes", "fedavg", 1)
    several = [number(case, 2.0), number(case, 4.0), replace(number(case, 0.0), wrong=0), number(case, None)]
    line = [cell.strip() for cell in label_audit.of_numbers(several).splitlines()[-1].strip("|").split("|")]
    assert line == [
        *("mnist", "fedes", "fedavg", "window", "1", "4", "15 %", "25 %"),
        *("0.67", "3.3", "10", "1 of 1"),
    ]
