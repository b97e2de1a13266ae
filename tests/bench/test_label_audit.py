"""The benchmark of audits: what it keeps of runs that were made elsewhere."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from bench import label_audit
from bench.label_audit import Case, Row
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
    (tmp_path / here.folder).mkdir(parents=True)
    write_rows(tmp_path / "audits.csv", Row, [row(elsewhere, 0.25), row(here, 0.5)])
    label_audit.main([str(tmp_path), "--images", "mnist", "--noise", "worst", "--methods", "flr"])
    assert made == [here, missing]
    assert read_rows(tmp_path / "audits.csv", Row) == [row(here, None), row(elsewhere, 0.25), row(missing, None)]
    assert (tmp_path / "audits.md").exists()
