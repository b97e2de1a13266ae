"""``flnl doctor`` compares a GPU with the CPU, and says so where it computes something else."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from flnl.doctor import __main__ as doctor
from flnl.doctor import agreement


@pytest.fixture(autouse=True)
def _brief(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One method, for two rounds."""
    text = yaml.safe_load(agreement.FILE.read_text())
    text["runs"] = {"FedDyn": [*text["runs"]["FedDyn"], "rounds=2", "dataset.train_size=200"]}
    (tmp_path / "agreement.yaml").write_text(yaml.safe_dump(text))
    monkeypatch.setattr(agreement, "FILE", tmp_path / "agreement.yaml")
    monkeypatch.chdir(tmp_path)


def test_a_gpu_that_is_right_agrees(gpu: str, capsys: pytest.CaptureFixture[str]) -> None:
    doctor.command(["--quick", "--device", gpu])
    out = capsys.readouterr().out
    assert out.count("agrees") == len(agreement.WAYS)
    assert "WRONG" not in out


@pytest.mark.parametrize("fault", ["elsewhere", "unsteady"])
def test_a_gpu_that_is_wrong_is_found(
    fault: str, gpu: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It computes something else with graphs, or something else each time."""
    trained, runs = agreement.trained, [0]

    def faulty(overrides: Sequence[str]) -> Any:
        result = trained(overrides)
        if "executor.graphs=true" in overrides:
            runs[0] += fault == "unsteady"
            size = 1e-9 * runs[0] if fault == "unsteady" else 1e-3
            return agreement.Trained({n: p + size for n, p in result.params.items()}, 0.0)
        return result

    monkeypatch.setattr(agreement, "trained", faulty)
    with pytest.raises(SystemExit) as left:
        doctor.command(["--quick", "--device", gpu])
    assert left.value.code == 1
    out = capsys.readouterr().out
    assert f"{gpu} does not compute what the CPU computes (tolerance 1e-06): FedDyn (recorded)" in out
    assert out.count("agrees") == len(agreement.WAYS) - 1
