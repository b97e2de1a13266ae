"""The runs of the cards: a line has what its run has reported, and lines that are there stay."""

import json
from pathlib import Path

import pytest

from bench import card_runs
from bench.whole_runs import read_rows


@pytest.mark.slow
def test_a_line_has_what_its_run_has_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "runs.csv"
    monkeypatch.setattr(card_runs, "FILE", file)
    monkeypatch.setattr(
        card_runs,
        "SETTINGS",
        {"one": ("dataset=digits rounds=1 model=mlp", ("method=fedavg", "method=elr method/local=[elr]"))},
    )
    card_runs.main([str(tmp_path / "runs"), "--seeds", "1"])
    elr, fedavg = read_rows(file, card_runs.Row)
    assert (elr.run, fedavg.run, fedavg.seed) == ("method=elr method/local=[elr]", "method=fedavg", 1)
    result = json.loads((tmp_path / "runs" / "one" / "method_fedavg" / "1" / "result.json").read_text())
    assert json.loads(fedavg.metrics) == result["metrics"]
    assert fedavg.training_passes == result["training_passes"] > 0
    card_runs.main([str(tmp_path / "runs"), "--seeds", "1"])
    assert read_rows(file, card_runs.Row) == [elr, fedavg]
