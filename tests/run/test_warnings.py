"""What a run warns of at its end: on the terminal, in its record, and when its folder is read."""

import re
from pathlib import Path

import pytest

import flnl
from flnl.core.payload import Params, all_finite
from flnl.core.stage import Stage
from flnl.core.state import ServerState
from flnl.evaluation import correction_warnings
from tests.properties.runs import run
from tests.registry import BY_NAME, ONE_STAGE, TINY

FEDCORR = BY_NAME["fedcorr"].words


@pytest.fixture(autouse=True)
def easily_alarmed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A twentieth counts as most labels, and any change of the accuracy as a fall."""
    monkeypatch.setattr(correction_warnings, "MOST", 0.05)
    monkeypatch.setattr(correction_warnings, "FALL", -1.0)
    monkeypatch.setattr(correction_warnings, "MEAN_OF", 1)


def test_a_run_warns_at_once_and_at_its_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ran = run(FEDCORR, tmp_path / "run")
    warnings, metrics = ran.record["warnings"], ran.record["metrics"]
    lines = [line.removeprefix("warning: ") for line in capsys.readouterr().err.splitlines() if "warning: " in line]
    changed = f"the method has changed {metrics['changed']:.0f} of 170 labels"
    assert warnings[0].startswith(changed)
    first, *_ = (row for row in ran.corrections if row["relabelled"])
    assert f"(round {first['round'] + 1})" in warnings[1]
    assert re.search(r", for good in round \d+, stage (preprocess|finetune|usual); ", warnings[1])
    assert lines[0].startswith("the method has changed"), "at once, of the labels that were changed by then"
    assert lines[1:] == warnings
    assert flnl.load_run(ran.folder).warnings == tuple(warnings)


def test_a_resumed_run_has_the_warnings_of_an_unbroken_one(tmp_path: Path) -> None:
    whole = run(FEDCORR, tmp_path / "whole")
    first = next(row["round"] for row in whole.corrections if row["relabelled"])
    run(FEDCORR, tmp_path / "run", f"max_rounds={first + 1}")
    assert run(FEDCORR, tmp_path / "run", "resume=true").record["warnings"] == whole.record["warnings"]


def test_a_method_that_leaves_samples_out_is_judged_from_its_first_suspects_on(tmp_path: Path) -> None:
    """FedDiv changes no label that a client keeps."""
    ran = run(BY_NAME["feddiv"].words, tmp_path / "run")
    suspected = [row["round"] for row in ran.lines if row["kind"] == "evaluation" and row.get("suspected")]
    fell, *_ = (line for line in ran.record["warnings"] if "accuracy" in line)
    assert suspected[0] > 1
    assert f"(round {suspected[0]})" in fell


def test_a_run_says_that_its_final_model_has_diverged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parameters are finite, but so large that its outputs overflow."""

    def huge(stage: Stage, server: ServerState) -> Params:
        return {name: p * 1e30 if p.is_floating_point() else p for name, p in server.params.items()}

    monkeypatch.setattr(Stage, "shown", huge)
    ran = run([*TINY, "method=fedavg", *ONE_STAGE, "train.lr=0.25"], tmp_path / "run")
    assert all_finite(ran.state.server.params)
    (line,) = ran.record["warnings"]
    assert re.fullmatch(
        r"the model has diverged: its outputs are not finite on test samples and on \d+ of 170 training samples "
        r"\(nan in labels\.csv\); try a smaller train\.lr \(it is 0\.25\) in a new run",
        line,
    )
    assert "nan" in (ran.folder / "labels.csv").read_text()


def test_a_method_that_judges_no_label_warns_of_nothing(tmp_path: Path) -> None:
    ran = run([*TINY, "method=fedavg", *ONE_STAGE], tmp_path / "run")
    assert "warnings" not in ran.record
    assert flnl.load_run(ran.folder).warnings == ()
