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
    kind = ("digits", "cnn", 10, False)
    runs = [Planned(n, [], "0", None, "new", "cpu", kind, passes) for n, passes in enumerate((10.0, 20.0))]
    runs.append(Planned(2, [], "0", None, "new", "cpu", ("cifar10", "cnn", 10, False), 5.0))
    timed = Paces(
        [Pace("digits", "cnn", batch, "cpu", gpu, s) for batch, gpu, s in ((10, False, 60.0), (32, False, 1.0))]
    )
    assert estimate(runs[:2], timed).startswith("about 30 min one after the other")
    assert estimate(runs, timed).endswith("without 1 that it has not timed")
    assert estimate(runs[2:], timed).startswith("no estimate")
    assert estimate([], timed) == ""


def test_one_configuration_of_a_sweep_is_not_shown(command: Command) -> None:
    said = command(*FEDAVG, "seed=1,2", "--cfg", "job")
    assert said.code == 2
    assert "--dry-run" in said.err
