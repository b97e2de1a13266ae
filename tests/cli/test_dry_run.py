"""``--dry-run``: what a command would run, without running or writing anything."""

import re
from pathlib import Path

import pytest

from flnl.config import compose
from flnl.config.identity import run_key
from flnl.storage.paces import Pace, Paces
from flnl.sweep.dry_run import Planned, estimate
from tests.cli.conftest import Command
from tests.cli.test_sweeps import FEDAVG
from tests.registry import BY_NAME

RUN = BY_NAME["fedavg"].words


def everything(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*"))


def test_the_jobs_of_a_sweep_with_their_keys_and_folders(command: Command, tmp_path: Path) -> None:
    said = command(*FEDAVG, "seed=3,4", "hydra.sweep.dir=multirun/mine", "--dry-run")
    assert (said.code, said.err) == (0, "")
    assert everything(tmp_path) == []
    for number, seed in enumerate((3, 4)):
        key = run_key(compose.resolved(compose.load([*RUN, f"seed={seed}"])))
        assert re.search(rf"^ {number} +{key[:8]} +seed={seed} +multirun/mine/{number} +new", said.out, re.M), said.out
    assert "sweep multirun/mine: one after the other, in this process" in said.out
    assert "2 runs: 2 new" in said.out


def test_what_is_there_already(command: Command, tmp_path: Path) -> None:
    sweep = [*FEDAVG, "seed=3", "hydra.sweep.dir=multirun/mine"]
    assert command(*sweep).code == 0
    before = {path: path.stat().st_mtime_ns for path in everything(tmp_path)}
    said = command(*sweep[:-2], "seed=3,4", sweep[-1], "--dry-run")
    assert "2 runs: 1 finished there, 1 new" in said.out
    assert {path: path.stat().st_mtime_ns for path in everything(tmp_path)} == before


def test_a_single_run(command: Command, tmp_path: Path) -> None:
    said = command(*RUN, "--dry-run", "output=mine")
    assert said.code == 0
    assert "1 run: 1 new" in said.out
    assert everything(tmp_path) == []
    refused = command(*RUN, "noise.rho=2", "--dry-run")
    assert (refused.code, refused.err.count("\n")) == (2, 1)


def test_a_run_whose_data_are_missing_would_be_refused(command: Command, tmp_path: Path) -> None:
    own = (*RUN, "dataset=image_folder", "dataset.crop_from=null", "--dry-run")
    said = command(*own, "dataset.root=NOPE")
    assert (said.code, "1 run: 1 refused" in said.out) == (2, True)
    assert "dataset.root=NOPE: there is no NOPE" in said.err
    assert "1 run: 1 refused" in command(*RUN, "--dry-run", "partition=file", "partition.path=owners.csv").out
    (tmp_path / "photos").mkdir()
    assert (
        "dataset.labels=own.csv: there is no photos/own.csv"
        in command(*own, "dataset.root=photos", "dataset.labels=own.csv").err
    )
    (tmp_path / "photos" / "own.csv").touch()
    assert "1 new" in command(*own, "dataset.root=photos", "dataset.labels=own.csv").out
    sweep = command(*FEDAVG, "dataset=image_folder", "dataset.crop_from=null", "dataset.root=photos,NOPE", "--dry-run")
    assert (sweep.code, "2 runs: 1 new, 1 refused" in sweep.out) == (2, True)
    assert "job 1: dataset.root=NOPE" in sweep.err
    assert "1 new" in command(*RUN, "dataset=cifar10", "dataset.root=NOPE", "--dry-run").out, "it is downloaded"


def test_the_run_in_a_folder_may_be_another(command: Command) -> None:
    assert command(*RUN, "output=mine").code == 0
    for words, reason in (
        (("output=mine",), "mine already holds a run (finished)"),
        (
            ("output=mine", "resume=true", "seed=7"),
            "mine holds a run of another configuration; these keys differ: data_seed",
        ),
        (("resume=mine", "seed=7"), "mine holds a run of another configuration"),
        (
            ("resume=mine", "method=fedprox"),
            "these keys differ: method (fedavg there, fedprox here). It was begun with ",
        ),
        (("resume=nothing",), "resume=nothing: no run is recorded there"),
        (("resume=nothing", "output=mine"), "resume=nothing: no run is recorded there"),
    ):
        said = command(*RUN, *words, "--dry-run")
        assert (said.code, "1 run: 1 refused" in said.out) == (2, True)
        assert reason in said.err
        assert command(*RUN, *words).code == 2, "as it is without --dry-run"
    for words in (("output=mine", "resume=true"), ("resume=mine",), ("output_root=.", "resume=true")):
        assert "1 run: 1 finished there" in command(*RUN, *words, "--dry-run").out
    sweep = (*FEDAVG, "seed=3", "hydra.sweep.dir=multirun/mine")
    assert command(*sweep).code == 0
    said = command(*sweep, "fraction=0.5", "--dry-run")
    assert (said.code, "1 run: 1 refused" in said.out) == (2, True)


def test_two_names_of_one_run_are_told(command: Command) -> None:
    said = command(*FEDAVG, "data_seed=1,${seed}", "seed=1", "--dry-run")
    assert "jobs 0, 1 are the same run" in said.out


def test_a_wrong_job_is_told(command: Command, tmp_path: Path) -> None:
    said = command(*FEDAVG, "seed=1,-2", "--dry-run")
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "job 1: seed=-2" in said.err
    assert everything(tmp_path) == []


def test_the_submission_to_slurm_bears_the_name_of_the_sweep(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flnl.sweep.supervisor.shutil.which", lambda name: None)
    launcher = ("hydra/launcher=submitit_slurm", "hydra.launcher.partition=gpu", "hydra.launcher.mem_gb=16")
    said = command(*FEDAVG, "seed=1,2,3", *launcher, "hydra.sweep.dir=multirun/rates", "--dry-run")
    assert said.code == 0, said.err
    for line in ("--array=0-2", "--partition=gpu", "--mem=16GB", "--job-name=flnl-rates"):
        assert f"\n#SBATCH {line}" in said.out
    assert everything(tmp_path) == []
    named = command(*FEDAVG, "seed=1,2", *launcher, "hydra.launcher.name=lr", "--dry-run")
    assert "--job-name=lr\n" in named.out
    default = command(*FEDAVG, "seed=1,2", *launcher, "--dry-run")
    assert re.search(r"--job-name=flnl-\d{4}-\d\d-\d\d-\d\d-", default.out)


def test_the_time_is_that_of_the_passes() -> None:
    kind = ("digits", "cnn", "32", 10)
    runs = [Planned(n, [], "0", None, "new", "", "cpu", False, kind, passes) for n, passes in enumerate((10.0, 20.0))]
    runs.append(Planned(2, [], "0", None, "new", "", "cpu", False, ("cifar10", "cnn", "32", 10), 5.0))
    timed = Paces(
        [Pace("digits", "cnn", batch, "cpu", gpu, s) for batch, gpu, s in ((10, False, 60.0), (32, False, 1.0))]
    )
    assert estimate(runs[:2], timed).startswith("30 min or more one after the other")
    assert estimate(runs, timed).endswith("without 1 that it has not timed")
    assert estimate(runs[2:], timed).startswith("no estimate")
    assert estimate([], timed) == ""
    bf16 = Paces([*timed.values, Pace("digits", "cnn", 10, "cpu", False, 1.0, "bf16")])
    assert estimate(runs[:2], bf16) == estimate(runs[:2], timed)


def test_one_configuration_of_a_sweep_is_not_shown(command: Command) -> None:
    said = command(*FEDAVG, "seed=1,2", "--cfg", "job")
    assert said.code == 2
    assert "--dry-run" in said.err
