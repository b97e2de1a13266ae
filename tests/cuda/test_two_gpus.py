"""One of two GPUs, as in ``device=cuda:1``: results, key and record of a run there."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from flnl.engine.executors.worker_context import Recipe
from flnl.engine.placement import placement_for
from tests.cuda.test_cuda import network
from tests.properties.runs import difference, run
from tests.registry import BY_NAME
from tests.simulated_gpu import device

WORDS = [word for word in BY_NAME["feddyn"].words if not word.startswith("executor=")]


@pytest.fixture
def second(gpu: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The second GPU, as in ``device=``."""
    if gpu == device.NAME:
        monkeypatch.setenv("FLNL_SIMULATED_GPU", "2")
    library = torch.get_device_module(gpu)
    if library.device_count() < 2:
        pytest.skip("there is one GPU")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    yield f"{gpu}:1"
    library.set_device(torch.device(gpu, 0))


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_run_on_the_second_gpu_is_the_one_on_the_first(
    executor: str, second: str, gpu: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flnl.engine.stacked.graph.LEAST", 2)  # batches: steps are recorded
    words = (*WORDS, f"executor={executor}")
    one, two = (run(words, tmp_path / place, f"device={place}") for place in (gpu, second))
    assert difference(one.state, two.state) is None
    assert one.record["key"] == two.record["key"]
    assert (two.record["device"], two.record["gpu"]["id"]) == (second, "1")
    assert one.record["gpu"]["id"] == "0"
    assert torch.get_device_module(gpu).current_device() == 1  # where streams and graphs are made


def test_a_run_goes_on_elsewhere_as_if_it_had_stayed(
    second: str, gpu: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = run(WORDS, tmp_path / "whole", f"device={gpu}")
    run(WORDS, tmp_path / "run", f"device={second}", "max_rounds=1")
    went_on = run(WORDS, tmp_path / "run", f"device={gpu}", "resume=true")
    assert difference(whole.state, went_on.state) is None
    said = capsys.readouterr().err
    assert "going on after round 1" in said
    assert "results may differ" not in said


def test_workers_are_on_the_gpu_of_their_run(second: str) -> None:
    assert Recipe.of(network(second)).device == second
    assert placement_for(second, 32).device == torch.device(second)


def test_a_run_warns_of_others_on_its_gpu(
    second: str, gpu: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = torch.get_device_module(gpu)
    free = {0: 7, 1: 3}
    monkeypatch.setattr(library, "mem_get_info", lambda place: (free[place.index] * 2**30, 8 * 2**30))
    for place, others in ((second, True), (gpu, False)):
        run(WORDS, tmp_path / place, f"device={place}", "max_rounds=1", "executor=sequential")
        warned = f"warning: other processes hold 5 of the 8 GiB of GPU 1 ({library.get_device_name(0)})"
        assert (warned in capsys.readouterr().err) is others
