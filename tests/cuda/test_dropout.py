"""Networks with dropout on a GPU: one client at a time, whose masks are those that it draws when it trains alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from flnl.engine.executors.sequential import Sequential
from flnl.engine.executors.stacked import Stacked
from tests.cuda.test_cuda import replays
from tests.properties.runs import assembled, difference
from tests.registry import BY_NAME

ENTRIES = ("fedavg_with_dropout", "fedcorr_with_dropout")


def rounds(name: str, folder: Path, gpu: str, executor: Any) -> list[dict[str, torch.Tensor]]:
    words = [word for word in BY_NAME[name].words if not word.startswith(("executor", "precision"))]
    with assembled(words, folder, "precision=64", f"device={gpu}", "train.epochs=3") as parts:
        found = parts.results(executor=executor(parts.evaluator.network))
        return [{n: t.cpu() for n, t in one.state.server.params.items()} for one in found]


@pytest.mark.parametrize("name", ENTRIES)
def test_masks_are_those_of_a_client_alone(
    name: str, tmp_path: Path, gpu: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """In double precision, where other sums show in the last digits alone, and other masks in the first."""
    counted = replays(torch.get_device_module(gpu), monkeypatch)
    monkeypatch.setattr("flnl.engine.stacked.graph.LEAST", 2)
    alone = rounds(name, tmp_path / "alone", gpu, Sequential)
    scores = counted[1]  # FedCorr's clients pass without dropout, which every executor replays
    assert (scores == 0) == (name == "fedavg_with_dropout")
    recorded = rounds(name, tmp_path / "recorded", gpu, lambda net: Stacked(net, 5, 4.0, "branches"))
    assert counted[1] - 2 * scores > 20
    assert "one by one" not in caplog.text
    for one, other in zip(alone, recorded, strict=True):
        for tensor, its in one.items():
            torch.testing.assert_close(other[tensor], its, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("graphs", ["branches", "stacks"])
def test_recorded_steps_draw_the_masks_of_normal_ones(
    graphs: Any, tmp_path: Path, gpu: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted, found = replays(torch.get_device_module(gpu), monkeypatch), []
    for least in (1000, 2):
        monkeypatch.setattr("flnl.engine.stacked.graph.LEAST", least)
        assert counted[1] == 0
        found.append(rounds(ENTRIES[0], tmp_path / str(least), gpu, lambda net: Stacked(net, 5, 4.0, graphs)))
    assert counted[1] > 20
    assert difference(found[0], found[1]) is None


def test_without_graphs_clients_run_one_by_one(tmp_path: Path, gpu: str, caplog: pytest.LogCaptureFixture) -> None:
    alone = rounds(ENTRIES[0], tmp_path / "alone", gpu, Sequential)
    eager = rounds(ENTRIES[0], tmp_path / "eager", gpu, lambda net: Stacked(net, 5, 4.0, False))
    assert difference(alone, eager) is None
    assert (
        "one by one, because the network has dropout, whose masks a GPU draws for one client at a time" in caplog.text
    )
