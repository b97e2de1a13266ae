"""The benchmark of the choice between recorded probabilities."""

from pathlib import Path

import pytest

from bench import probability_choice
from bench.probability_choice import Compared, compared, report
from tests.properties.runs import run

FIRST = Compared({"window": 0.9, "all": 0.8, "final": 0.5}, dict.fromkeys(("window", "all", "final"), 0.5), {}, "all")


def test_what_is_lost_is_told_against_the_best_kind() -> None:
    spoiled = {"window": 0.25, "all": 0.5, "final": 0.75}
    one = Compared(FIRST.ranking, spoiled, spoiled, "all")
    other = Compared({"window": 0.4, "all": 0.5, "final": 0.6}, spoiled, spoiled, "final")
    text = report({"mnist, symmetric, fedavg": [one, other]})
    line = "| mnist, symmetric, fedavg | 2 | .650 / .650 / .550 | .250 / .500 / .750 | .250 / .500 / .750 |"
    assert f"{line} all 1, final 1 | 0.050 |" in text
    behind = (
        "the choice 0.050 (at most 0.100), the best on the test set 0.200 (at most 0.400), "
        "window 0.100 (at most 0.200), all 0.100 (at most 0.100), final 0.200"
    )
    assert f"Behind the best kind, of 2 runs: {behind}" in text


def test_a_run_is_audited_by_each_kind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "mnist/symmetric/fedavg/1"
    words = ["dataset=digits", "method=fedavg", "noise=symmetric", "noise.eta=0.3", "rounds=4", "model=mlp"]
    run([*words, "seed=1", "figures=false", "wandb.mode=disabled", "audit.record=true"], folder)
    found = compared(folder, None)
    assert [*found.ranking] == [*found.spoiled] == [*found.accuracy] == ["window", "all", "final"]
    assert found.spoiled[found.taken] >= max(found.spoiled.values()) - 0.01
    assert found.lost("final") + found.lost("window") + found.lost("all") > 0
    probability_choice.main([str(tmp_path)])
    assert f"{tmp_path.name}: mnist, symmetric, fedavg | 1 |" in capsys.readouterr().out
