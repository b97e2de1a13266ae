"""``flnl doctor``: what it says of a machine, what it times, and what the tables make of it."""

import json
import math
import os
import platform
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from threading import Barrier, BrokenBarrierError
from typing import Any

import pytest
import torch
import yaml
from filelock import FileLock
from rich.console import Console

from flnl.commands import doctor as doctor
from flnl.commands import tables
from flnl.config import compose
from flnl.console import cores
from flnl.core.errors import UserError
from flnl.instruments.doctor import agreement, at_once, examination, networks, surroundings, timing
from flnl.instruments.tables.request import parse
from flnl.run import paces_here as here
from flnl.run.budget import model_name
from flnl.run.paces_here import paces_here
from flnl.run.record import environment
from flnl.storage import paces
from flnl.storage.paces import Pace, Paces


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLNL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("FLNL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(timing, "LONG_ENOUGH", 0.0)


def test_it_says_what_there_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    for name in ("MNIST/raw/images", "SVHN/.lock", "cache/.hidden/file"):
        file = tmp_path / "data" / name
        file.parent.mkdir(parents=True)
        file.touch()
    (tmp_path / "data" / "own").mkdir()
    (tmp_path / "data" / "own" / "train").symlink_to(tmp_path)
    rows = {row.name: row for row in surroundings.surroundings(compose.load([])) if row.name != "data"}
    assert rows["cache"].value.startswith(f"{tmp_path / 'cache'}: ")
    assert rows["W&B"].value == "disabled"
    assert "torch " in rows["packages"].value
    data = [row.value for row in surroundings.surroundings(compose.load([])) if row.name == "data"]
    assert any(
        value == f"{tmp_path / 'data'}, for cifar10, cifar100, fashion_mnist, mnist, svhn: MNIST, own" for value in data
    )
    assert any(value.endswith("for clothing1m: nothing there yet") for value in data)


@pytest.mark.parametrize(
    ("system", "told", "name"),
    [
        ("linux", "processor\t: 0\nmodel name\t: Xeon: 8481C\nprocessor\t: 1\nmodel name\t: other\n", "Xeon: 8481C"),
        ("linux", "processor\t: 0\nCPU implementer\t: 0x41\n", "by Python"),  # ARM
        ("linux", None, "by Python"),
        ("darwin", "Apple M2\n", "Apple M2"),
        ("darwin", None, "by Python"),
    ],
)
def test_the_processor_has_the_name_that_the_system_gives_it(
    system: str, told: str | None, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ("sysctl" if system == "darwin" else "cpuinfo")
    if told is not None:
        file.write_text(f"#!/bin/sh\n[ $2 = machdep.cpu.brand_string ] && echo {told}" if system == "darwin" else told)
        file.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(cores, "CPUINFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(sys, "platform", system)
    monkeypatch.setattr(platform, "processor", lambda: "by Python")
    assert cores.processor.__wrapped__() == name


def test_the_machine_names_its_processor_as_paces_and_records_do() -> None:
    rows = {row.name: row.value for row in surroundings.surroundings(compose.load([]))}
    assert rows["machine"] == environment().machine
    assert f", {cores.processor()}, " in rows["machine"]


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


def test_a_folder_that_cannot_be_reached_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's refusals are rows, not the end of the doctor."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("COLUMNS", "1000")
    for name, value, problem in (
        ("FLNL_CACHE", tmp_path / "file" / "cache", f"{tmp_path / 'file'} is not a folder"),
        ("FLNL_DATA", tmp_path / "file", "mnist, svhn: cannot be read (Not a directory)"),
    ):
        with monkeypatch.context() as patch:
            patch.setenv(name, str(value))
            with pytest.raises(SystemExit) as left:
                doctor.command(["--quick", "--device", "cpu"])
        assert left.value.code == 1
        assert problem in capsys.readouterr().out

    def refused(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.disk_usage", refused)
    rows = [row for row in surroundings.surroundings(compose.load([])) if row.name == "cache"]
    assert [(row.problem, row.value) for row in rows] == [
        (True, f"{tmp_path / 'cache'}: cannot be reached (Permission denied)")
    ]


def test_times_that_cannot_be_kept_are_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether the folder is none, or another doctor holds the file."""
    monkeypatch.setattr(paces, "SECONDS", 0.0)
    (tmp_path / "file").touch()
    (tmp_path / "held").mkdir()
    with FileLock(tmp_path / "held" / paces.LOCK):
        for folder in ("file", "held"):
            monkeypatch.setenv("FLNL_CACHE", str(tmp_path / folder))
            with pytest.raises(SystemExit) as left:
                doctor.command(["--device", "cpu", "--networks", "lenet"])
            assert left.value.code == 1
            out = capsys.readouterr().out
            assert "images a second" in out
            assert "PROBLEM: the times could not be kept for flnl tables plan: " in out


def test_a_doctor_that_is_stopped_has_kept_what_it_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = timing.alone

    def stopped(setting: networks.Setting, *more: Any) -> Any:
        if "VGG" in setting.title:
            raise KeyboardInterrupt
        return original(setting, *more)

    monkeypatch.setattr(timing, "alone", stopped)
    with pytest.raises(KeyboardInterrupt):
        doctor.command(["--device", "cpu", "--networks", "lenet", "vgg"])
    assert [pace.model for pace in Paces.load(tmp_path / "cache").values] == ["LeNet5(batch_norm=False)"]


def test_models_with_a_nan_differ() -> None:
    """The largest of a number and NaN is the number in Python."""
    one, nan = {"w": torch.ones(2)}, {"w": torch.tensor([1.0, torch.nan])}
    assert agreement.difference(one, one) == 0.0
    assert (
        agreement.difference(one, nan) == agreement.difference(nan, one) == agreement.difference(nan, nan) == math.inf
    )


def test_what_it_times_is_kept_and_replaces_what_it_timed_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = Pace("cifar10", "LeNet5(batch_norm=False)", 10, "another processor", False, 3.0)
    Paces((other,)).save(tmp_path / "cache")
    for _ in range(2):
        doctor.command(["--device", "cpu", "--networks", "lenet"])
    assert "LeNet-5" in capsys.readouterr().out
    kept = Paces.load(tmp_path / "cache").values
    assert kept[0] == other
    assert [(pace.dataset, pace.model, pace.batch, pace.gpu) for pace in kept[1:]] == [
        ("cifar10", "LeNet5(batch_norm=False)", 10, False)
    ]
    assert kept[1].seconds > 0


def test_a_kind_of_gpu_has_what_was_measured_of_it(tmp_path: Path) -> None:
    """Until the doctor has timed one; what it has timed of other GPUs then says nothing of this one."""
    kind, card = ("cifar10", model_name(compose.resolved(compose.load(["model=resnet18"]))["model"]), 10), "NVIDIA H200"
    processor, other = Pace(*kind, "a processor", False, 500.0), Pace(*kind, "another GPU", True, 60.0)
    Paces((processor, other)).save(tmp_path)
    fp32, bf16 = Pace(*kind, card, True, 50_000 / 5_105), Pace(*kind, card, True, 50_000 / 18_306, "bf16")
    assert set(paces_here(tmp_path, {card}).values) == {processor, fp32, bf16}
    assert set(paces_here(tmp_path, {"unknown"}).values) == {processor, other}
    assert set(paces_here(tmp_path, set()).values) == {processor, other}
    Paces.add(tmp_path, [slower := replace(fp32, seconds=11.0)])
    assert set(paces_here(tmp_path, {card}).values) == {processor, slower, bf16}


def test_what_is_kept_of_gpus_is_what_their_reports_say() -> None:
    """Of ten clients side by side, in the layout that a run takes."""
    layouts = {"32": "fp32, contiguous", "bf16": "bf16, channels_last"}
    for row in yaml.safe_load(here.FILE.read_text()):
        report = (Path(here.FILE).parents[2] / row["report"]).read_text()
        assert f"| GPU | {row['card']} |" in report
        for precision, rate in row["images_a_second"].items():
            assert f"| branches of 10, {layouts[str(precision)]} | {rate:,} |" in report


def test_the_plan_and_the_doctor_tell_the_minutes_of_a_known_gpu(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """FedCorr's 500 passes over CIFAR-10 are 25 million images."""
    found = timing.known(paces_here(tmp_path, {"NVIDIA H200"}), "NVIDIA H200", networks.settings())
    assert [(one.setting.title, one.batch, one.precision, one.setting.passes) for one in found] == [
        ("ResNet-18 on CIFAR-10", 10, "32", 500.0),
        ("ResNet-18 on CIFAR-10", 10, "bf16", 500.0),
    ]
    Console(width=200).print(examination._times("", found))
    out = capsys.readouterr().out
    assert [told in out for told in ("fedcorr", "5,105", " 1.4 h", "18,306", "23 min")] == [True] * 5
    monkeypatch.setattr(here, "cards_here", lambda: {"NVIDIA H200"})
    tables.command(["plan", "fedcorr_2", "scale=paper", "seeds=1", "columns=ρ=0.6*τ=0.5*", "rows=FedCorr"])
    assert "on a GPU: 1.4 h of a GPU or more for 1 whose method has not run" in capsys.readouterr().out


def test_a_damaged_file_of_paces_is_as_none(tmp_path: Path) -> None:
    row = {"dataset": "digits", "model": "cnn", "batch": 10, "device": "A", "gpu": True, "seconds": 1.0}
    wrong = ({**row, "runs": 0}, {**row, "runs": "x"}, {**row, "seconds": 0}, {**row, "batch": None}, {"seconds": 1})
    rows = [json.dumps({"format": 1, "paces": [one]}, allow_nan=True) for one in wrong]
    for text in ("", "{}", '{"format": 99, "paces": []}', '{"format": 1, "paces": 3}', *rows):
        (tmp_path / "paces.json").write_text(text)
        assert Paces.load(tmp_path) == Paces()


def test_a_network_that_does_not_fit_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(networks, "_round", full)
    doctor.command(["--device", "cpu", "--networks", "lenet"])
    assert "does not fit" in capsys.readouterr().out
    assert Paces.load(tmp_path / "cache") == Paces()


def test_a_network_that_fails_does_not_keep_the_others_from_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(setting: networks.Setting, *more: Any) -> Any:
        if "LeNet" in setting.title:
            raise RuntimeError("no kernel image is available\nsecond line")
        return networks.Rate(1, 1e3, False)

    monkeypatch.setattr(timing, "alone", failing)
    with pytest.raises(SystemExit) as left:
        doctor.command(["--device", "cpu", "--networks", "lenet", "vgg"])
    assert left.value.code == 1
    out = capsys.readouterr().out
    assert "LeNet-5 on CIFAR-10, batches of 10, precision=32: RuntimeError: no kernel image is available\n" in out
    assert [pace.model for pace in Paces.load(tmp_path / "cache").values] == ["VGG11(dropout=0.5)"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--networks", "alexnet"], "alexnet: no title contains this; there are LeNet-5 on CIFAR-10"),
        (["--device", "tpu"], "device=tpu: must be auto, cpu, cuda"),
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
    assert {setting.kind for setting in networks.settings()} == needed


def test_networks_to_time_are_refused_where_none_are_timed() -> None:
    for option in (["--networks", "LeNet"], ["--jobs"]):
        with pytest.raises(UserError, match=f"--quick times no networks: leave it out, or leave out {option[0]}"):
            doctor.command(["--quick", *option])


def test_several_runs_at_once_are_not_timed_on_a_cpu() -> None:
    with pytest.raises(UserError, match="--jobs is about a GPU"):
        doctor.command(["--device", "cpu", "--jobs"])


def test_more_runs_at_once_are_timed_until_they_train_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a machine with 16 cores: 4 % more than before is noise. What is timed before a failure stays."""
    monkeypatch.setattr(at_once, "usable_cores", lambda: 16)
    setting = timing_of("LeNet-5")
    images_a_second = {1: 100.0, 2: 190.0, 4: 300.0, 8: 312.0, 16: 500.0}

    def joint_rate(runs: int, *_: object) -> networks.Rate:
        return networks.Rate(runs, images_a_second[runs], True)

    monkeypatch.setattr(at_once, "joint_rate", joint_rate)
    timed = [*timing.timings("sim", "a GPU", [setting], at_once=True)]
    assert [(one.precision, one.runs) for one in timed] == [(p, n) for p in ("32", "bf16") for n in (1, 2, 4, 8)]
    paces = [one.pace for one in timed if one.pace is not None]
    assert [pace.seconds for pace in paces[:4]] == [50_000 / images_a_second[pace.runs or 0] for pace in paces[:4]]
    assert Paces(paces).runs_at_once({paces[0].kind, paces[4].kind}, {"a GPU"}) == 4
    images_a_second[4] = 193.0  # which is no more than two had, so two are best
    assert [rate.runs for rate in at_once.rates(setting, "sim", 32)] == [1, 2, 4]
    assert {one.pace.runs for one in timing.known(Paces(paces), "a GPU", [setting]) if one.pace} == {1, 2, 4, 8}
    del images_a_second[4]

    def full(runs: int, *_: object) -> networks.Rate:
        if runs == 4:
            raise torch.OutOfMemoryError
        return joint_rate(runs)

    monkeypatch.setattr(at_once, "joint_rate", full)
    timed = [*timing.timings("cpu", "a GPU", [setting], at_once=True)]
    assert [(one.runs, one.failure) for one in timed] == [(1, ""), (2, ""), (4, "does not fit the memory")]


def timing_of(text: str) -> networks.Setting:
    """The first setting whose title begins so."""
    return next(one for one in networks.settings() if one.title.startswith(text))


def test_two_runs_at_once_train_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(at_once, "SECONDS", 0.2)
    rate = at_once.joint_rate(2, timing_of("LeNet-5"), "cpu", 32)
    assert (rate.runs, rate.stacked) == (2, False)
    assert rate.images_a_second > 0


def test_what_one_of_several_runs_raises_is_said() -> None:
    """The first error, not that others waited for it in vain."""
    wrong = replace(timing_of("LeNet-5"), shape=(3, 2, 2))
    with pytest.raises(Exception, match="needs inputs of at least 16x16") as raised:
        at_once.joint_rate(2, wrong, "cpu", 32)
    assert not isinstance(raised.value, BrokenBarrierError)


@pytest.mark.parametrize("last", [0, 2])
def test_a_run_that_fails_ends_the_others(last: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before they train, where they wait for it, and after, where each goes on until all have finished."""
    count = iter((last, sys.maxsize))

    class Trainer:
        images, stacked = 10, True

        def __init__(self, *_: object) -> None:
            self.left = next(count)

        def round(self) -> None:
            if self.left == 0:
                raise torch.OutOfMemoryError
            self.left -= 1

        def lengthen(self, _: float) -> None:
            self.round()

    monkeypatch.setattr(at_once, "Trainer", Trainer)
    monkeypatch.setattr(at_once, "_shared", [Barrier(2), get_context("spawn").Value("i", 2)])
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(at_once._rate, timing_of("LeNet-5"), "sim", 32, 0.1) for _ in range(2)]
        assert isinstance(done[0].exception(20), torch.OutOfMemoryError)
        if last:
            assert done[1].result(20).images_a_second > 0
        else:
            assert isinstance(done[1].exception(20), BrokenBarrierError)


def test_the_runs_at_once_are_those_that_were_timed_with_this_training_on_these_gpus() -> None:
    def pace(runs: int, seconds: float, model: str = "cnn", device: str = "A") -> Pace:
        return Pace("digits", model, 10, device, True, seconds, runs=runs)

    known = Paces((pace(1, 8.0), pace(2, 4.1), pace(4, 4.0), pace(8, 5.0), pace(1, 1.0, "mlp"), pace(2, 1.1, "mlp")))
    cnn, mlp = ("digits", "cnn", "32", 10), ("digits", "mlp", "32", 10)
    assert known.runs_at_once({cnn}, {"A"}) == 2  # 4 is within noise of it
    assert known.runs_at_once({cnn, mlp}, {"A"}) == 1
    assert known.runs_at_once({cnn}, {"A", "B"}) is None
    assert known.runs_at_once({("digits", "cnn", "bf16", 10)}, {"A"}) is None
    assert known.runs_at_once(set(), {"A"}) is known.runs_at_once({cnn}, set()) is None
    alone = Pace("digits", "cnn", 10, "A", True, 1.0)  # in another way, so it says nothing of the others
    assert known.including([alone]).runs_at_once({cnn}, {"A"}) == 2
    assert Paces((alone,)).runs_at_once({cnn}, {"A"}) is None


def test_a_measurement_of_runs_at_once_takes_the_place_of_the_one_before() -> None:
    """It may have stopped at fewer runs, as where processes take turns now, or the memory is too small."""

    def pace(runs: int | None, seconds: float, model: str = "cnn") -> Pace:
        return Pace("digits", model, 10, "A", True, seconds, runs=runs)

    others = pace(None, 9.0), pace(8, 1.0, "mlp")
    known = Paces((*others, *(pace(n, 10.0 / n) for n in (1, 2, 4, 8))))
    for runs, seconds in ((1, 10.0), (2, 9.9)):
        known = known.including([pace(runs, seconds)])
    assert known.values == (*others, pace(1, 10.0), pace(2, 9.9))
