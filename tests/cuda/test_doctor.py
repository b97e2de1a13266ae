"""``flnl doctor`` compares a GPU with the CPU, and says so where it computes something else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from flnl.commands import doctor as doctor
from flnl.config import compose
from flnl.engine.cuda_graph import CudaGraph
from flnl.instruments.doctor import agreement, surroundings


@pytest.fixture(autouse=True)
def _brief(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One method, for two rounds, with five batches in an epoch, which are enough to record."""
    text = yaml.safe_load(agreement.FILE.read_text())
    text["runs"] = {"FedDyn": [*text["runs"]["FedDyn"], "rounds=2", "dataset.train_size=400"]}
    (tmp_path / "agreement.yaml").write_text(yaml.safe_dump(text))
    monkeypatch.setattr(agreement, "FILE", tmp_path / "agreement.yaml")
    monkeypatch.chdir(tmp_path)


def complaint(gpu: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the doctor prints of a device with which something is wrong."""
    with pytest.raises(SystemExit) as left:
        doctor.command(["--quick", "--device", gpu])
    assert left.value.code == 1
    return capsys.readouterr().out


def test_a_gpu_that_is_right_agrees(gpu: str, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.command(["--quick", "--device", gpu])
    out = capsys.readouterr().out
    assert out.count("agrees") == len(agreement.WAYS)
    assert "WRONG" not in out
    assert torch.get_device_module(gpu).get_device_name(0) in out


def test_a_gpu_that_fails_is_said(
    gpu: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other ways are tried nevertheless."""
    trained = agreement.trained

    def failing(overrides: Sequence[str]) -> Any:
        if "executor.graphs=false" in overrides:
            raise RuntimeError("no kernel image is available")
        return trained(overrides)

    monkeypatch.setattr(agreement, "trained", failing)
    out = complaint(gpu, capsys)
    assert f"{gpu}: FedDyn (stacked): RuntimeError: no kernel image is available" in out
    assert (out.count("agrees"), out.count("FAILED")) == (len(agreement.WAYS) - 1, 1)


def test_steps_that_are_not_recorded_are_said(
    gpu: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a graph the numbers agree, too, so they alone would hide it."""

    def refused(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(CudaGraph, "capture", refused)
    out = complaint(gpu, capsys)
    assert (
        f"{gpu}: FedDyn (recorded): steps could not be recorded, because RuntimeError: operation not permitted" in out
    )
    assert (out.count("agrees"), out.count("FAILED")) == (len(agreement.WAYS) - 1, 1)


def test_a_gpu_that_another_process_has_for_itself_is_a_problem(gpu: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def busy(*_: object) -> None:
        raise RuntimeError("CUDA-capable device(s) is/are busy or unavailable")

    monkeypatch.setattr(torch.get_device_module(gpu), "mem_get_info", busy)
    rows = [row for row in surroundings.surroundings(compose.load([]), gpu) if row.name == "GPU 0"]
    assert [(row.problem, "busy" in row.value) for row in rows] == [(True, True)]


@pytest.mark.parametrize("fault", ["elsewhere", "unsteady"])
def test_a_gpu_that_is_wrong_is_found(
    fault: str, gpu: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes something else with graphs, or something else each time."""
    trained, runs = agreement.trained, [0]

    def faulty(overrides: Sequence[str]) -> Any:
        result = trained(overrides)
        if "executor.graphs=branches" in overrides:
            runs[0] += fault == "unsteady"
            size = 1e-9 * runs[0] if fault == "unsteady" else 1e-3
            return agreement.Trained({n: p + size for n, p in result.params.items()}, 0.0)
        return result

    monkeypatch.setattr(agreement, "trained", faulty)
    out = complaint(gpu, capsys)
    assert f"{gpu} does not compute what the CPU computes (tolerance 1e-06): FedDyn (recorded)" in out
    assert out.count("agrees") == len(agreement.WAYS) - 1
