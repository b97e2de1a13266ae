"""``flnl doctor``: what it says of a machine, what it times, and what the tables make of it."""

import os
import sys
from pathlib import Path

import pytest

from flnl.config import compose
from flnl.core.errors import UserError
from flnl.doctor import __main__ as doctor
from flnl.doctor import surroundings, timing
from flnl.storage.paces import Pace, Paces
from flnl.tables.__main__ import parse
from flnl.tables.identity import dataset_name, model_name


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLNL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FLNL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(timing, "LONG_ENOUGH", 0.0)


def test_it_says_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    (tmp_path / "data" / "MNIST").mkdir(parents=True)
    rows = {row.name: row for row in surroundings.surroundings(compose.load([])) if row.name != "data"}
    assert rows["cache"].value.startswith(f"{tmp_path / 'cache'}: ")
    assert rows["W&B"].value == "disabled"
    assert "torch " in rows["packages"].value
    data = [row.value for row in surroundings.surroundings(compose.load([])) if row.name == "data"]
    assert any(
        value == f"{tmp_path / 'data'}, for cifar10, cifar100, fashion_mnist, mnist, svhn: MNIST" for value in data
    )
    assert any(value.endswith("for clothing1m: nothing there yet") for value in data)


def test_a_folder_that_cannot_be_written_is_a_problem(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["flnl doctor", "--quick", "--device", "cpu"])
    doctor.main()
    assert "PROBLEM" not in capsys.readouterr().out
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(SystemExit) as left:
        doctor.main()
    assert left.value.code == 1
    assert "PROBLEM: outputs: cannot be written" in capsys.readouterr().out


def test_what_it_times_is_kept_and_replaces_what_it_timed_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Pace("cifar10", "LeNet5()", 10, "another processor", False, 3.0)
    Paces((other,)).save(tmp_path / "cache")
    for _ in range(2):
        doctor.command(["--device", "cpu", "--networks", "lenet"])
    assert "LeNet-5" in capsys.readouterr().out
    kept = Paces.load(tmp_path / "cache").values
    assert kept[0] == other
    assert [(pace.dataset, pace.model, pace.batch, pace.gpu) for pace in kept[1:]] == [
        ("cifar10", "LeNet5()", 10, False)
    ]
    assert kept[1].seconds > 0


def test_a_damaged_file_of_paces_is_as_none(tmp_path: Path) -> None:
    for text in ("", "{}", '{"format": 99, "paces": []}', '{"format": 1, "paces": [{"seconds": 1}]}'):
        (tmp_path / "paces.json").write_text(text)
        assert Paces.load(tmp_path) == Paces()


def test_a_network_that_does_not_fit_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(timing, "_round", full)
    doctor.command(["--device", "cpu", "--networks", "lenet"])
    assert "does not fit" in capsys.readouterr().out
    assert Paces.load(tmp_path / "cache") == Paces()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--networks", "alexnet"], "alexnet: no title contains this; there are LeNet-5 on CIFAR-10"),
        (["--device", "tpu"], "device=tpu: must be auto, cpu or cuda"),
        (["--device", "cuda"], "device=cuda, but torch finds no GPU here"),
        (["now"], "unrecognized arguments: now; see flnl doctor --help"),
    ],
)
def test_mistakes_are_refused(arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match=message):
        doctor.command(arguments)


@pytest.mark.slow
def test_every_network_of_the_tables_at_the_papers_scale_is_timed() -> None:
    """Else ``flnl tables plan scale=paper`` could not say what it costs."""
    plan = parse(["plan", "scale=paper", "seeds=1"]).plan
    needed = {(run.identity.dataset, run.identity.model, run.identity.batch) for run in plan.runs.values()}
    timed = set()
    for setting in timing.settings():
        plain = setting.plain
        timed.add((dataset_name(plain["dataset"]), model_name(plain["model"]), plain["train"]["batch_size"]))
    assert timed == needed
