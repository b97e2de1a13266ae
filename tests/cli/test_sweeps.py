"""Sweeps: no job costs another, the end tells of all, a stop saves, and the same command goes on."""

import importlib
import json
import math
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flnl.core.errors import UserError
from flnl.core.state import RoundResult
from flnl.run.progress import Bar
from flnl.sweep.job import score
from flnl.sweep.ledger import Job, Ledger
from flnl.sweep.progress import rounds_done
from flnl.sweep.supervisor import _patterns
from flnl.sweep.table import labels
from tests.cli.conftest import ROOT, Command, Launch, lines_of
from tests.properties.runs import Ran
from tests.registry import BY_NAME

FEDAVG = ["-m", *BY_NAME["fedavg"].words]
FAILING = [*FEDAVG, "on_nonfinite=stop", "train.lr=0.05,1e30,0.01"]
"""The second job raises in its first round."""


def only_sweep(tmp_path: Path) -> Path:
    (found,) = sweeps(tmp_path)
    return found


def sweeps(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "multirun").glob("*/*"))


def statuses(sweep: Path) -> list[str]:
    return [job.status for job in Ledger(sweep).jobs()]


def record(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "result.json").read_text())
    return found


def test_a_job_that_raises_costs_no_other_and_the_end_tells_of_all(command: Command, tmp_path: Path) -> None:
    said = command(*FAILING)
    sweep = only_sweep(tmp_path)
    assert said.code == 1
    assert statuses(sweep) == ["finished", "failed", "finished"]
    assert [record(sweep / n)["status"] for n in "012"] == ["finished", "failed", "finished"]
    assert "NonFiniteError" in (sweep / "1" / "error.log").read_text()
    assert not (sweep / "0" / "error.log").exists()
    assert "Traceback" not in said.err + said.out
    table = said.out[said.out.index("sweep multirun") :]
    for number, status in enumerate(("finished", "failed", "finished")):
        assert re.search(rf"^ *{number} +{status} +train\.lr=", table, re.M)
    assert "3 jobs: 2 finished, 1 failed" in table
    assert "1/error.log" in table
    assert "FULL_ERROR" not in said.err


def test_a_job_that_fails_before_its_run_is_open_has_its_traceback_where_the_list_says(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*words: Any) -> None:
        raise RuntimeError("a mistake in a noise of one's own")

    monkeypatch.setattr("flnl.run.opening.from_config", broken)
    said = command(*FEDAVG, "seed=1")
    log = only_sweep(tmp_path) / "0" / "error.log"
    assert statuses(only_sweep(tmp_path)) == ["failed"]
    assert "0/error.log" in said.out
    assert "RuntimeError: a mistake in a noise of one's own" in log.read_text()


def test_the_same_sweep_again_skips_what_is_finished_and_tries_the_rest(command: Command, tmp_path: Path) -> None:
    said = command(*FAILING)
    first = only_sweep(tmp_path)
    done = (first / "0" / "result.json").read_bytes()
    words = re.findall(r"to go on: flnl (.*)", said.err)
    assert words
    assert words[0].endswith(f"hydra.sweep.dir={first.relative_to(tmp_path)}")
    again = command(*FAILING, "resume=true")
    second = next(s for s in sweeps(tmp_path) if s != first)
    assert again.code == 1
    assert statuses(second) == ["finished", "failed", "finished"]
    assert (first / "0" / "result.json").read_bytes() == done
    assert not list(second.glob("*/result.json"))  # all went on where they were
    assert [job.folder for job in Ledger(second).jobs()] == [str(first.relative_to(tmp_path) / n) for n in "012"]


def test_the_printed_command_goes_on_in_the_same_folder(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped in the second of three jobs: the folder holds all of the sweep afterwards."""
    words = [*FEDAVG, "seed=1,2,3"]
    begun: list[int] = []
    whole = Bar.round

    def interrupted(self: Bar, result: RoundResult) -> None:
        begun.append(result.state.round)
        if begun.count(1) == 2 and len(begun) == begun.index(1, 1) + 1:
            os.kill(os.getpid(), signal.SIGINT)
        whole(self, result)

    monkeypatch.setattr(Bar, "round", interrupted)
    said = command(*words)
    sweep = only_sweep(tmp_path)
    assert (said.code, statuses(sweep)) == (130, ["finished", "interrupted", "waiting"])
    assert [job.error for job in Ledger(sweep).jobs()] == [None, "SIGINT", None]
    done = (sweep / "0" / "result.json").read_bytes()
    (line,) = re.findall(r"to go on: flnl (.*)", said.err)
    again = command(*shlex.split(line))
    assert (again.code, sweeps(tmp_path)) == (0, [sweep])
    assert statuses(sweep) == ["finished"] * 3
    assert "going on after round" in again.err
    assert (sweep / "0" / "result.json").read_bytes() == done
    assert [record(sweep / n)["status"] for n in "012"] == ["finished"] * 3
    assert not list(tmp_path.glob("outputs/*"))


@pytest.mark.parametrize("words", [[*FEDAVG, "seed=1", "max_rounds=1"], ["seed=1", "max_rounds=1", *FEDAVG[1:], "-m"]])
def test_a_sweep_that_stopped_at_max_rounds_goes_on_without_it(
    words: list[str], command: Command, tmp_path: Path
) -> None:
    said = command(*words)
    assert statuses(only_sweep(tmp_path)) == ["stopped"]
    (line,) = re.findall(r"to go on: flnl (.*)", said.err)
    assert command(*shlex.split(line)).code == 0
    assert statuses(only_sweep(tmp_path)) == ["finished"]


def test_a_finished_sweep_exits_0_and_suggests_nothing(command: Command, tmp_path: Path) -> None:
    said = command(*FEDAVG, "seed=1,2")
    assert said.code == 0
    assert statuses(only_sweep(tmp_path)) == ["finished", "finished"]
    assert "2 jobs: 2 finished" in said.out
    assert "to go on" not in said.err
    assert {json.loads((only_sweep(tmp_path) / n / "result.json").read_text())["config"]["seed"] for n in "01"} == {
        1,
        2,
    }


def test_jobs_that_work_in_their_own_folders_are_in_the_list(command: Command, tmp_path: Path) -> None:
    said = command(*FEDAVG, "seed=1", "hydra.job.chdir=true")
    assert said.code == 0
    assert statuses(only_sweep(tmp_path)) == ["finished"]


@pytest.mark.parametrize(
    ("axis", "said"),
    [
        ("noise.rho=0.2,1.6", "job 1: noise.rho=1.6: must be less than or equal to 1"),
        ("method=fedavg,fedavgg", "fedavgg does not exist; did you mean fedavg?"),
        ("seed=range(1,0)", "seed=range(1,0) gives no value, so the sweep has no jobs"),
        ("train.lr=0.1,abc", "job 1: train.lr=abc: must be a valid number"),
        ("train.lr=0.1,0.001 train.min_lr=0,0.01 train.cosine=true", "job 3: train.min_lr=0.01: the cosine ends at"),
        ("method=fedavg,fedcorr", "job 1: rounds is for methods of one stage; method=fedcorr has method.T1="),
        ("seed=1,2 output=here", "output=here: jobs 0 and 1 would both run in this folder"),
        ("output=runs/a,./runs/../runs/a", "output=./runs/../runs/a: jobs 0 and 1 would both run in this folder"),
        ("data_seed=7 seed=1,2 output=runs/${data_seed}", "output=runs/7: jobs 0 and 1 would both run in"),
        ("seed=1,2 max_rounds=1,2 output=runs/${seed}", "output=runs/1: jobs 0 and 1 would both run in"),
        ("max_rounds=1,2 seed=1,2 output=runs/${seed}", "output=runs/1: jobs 0 and 2 would both run in"),
        (r"seed=1,2 output=runs/\${seed}", r"output=runs/${seed}: jobs 0 and 1 would both run in"),
        ("seed=1,2 max_rounds=1,2 hydra.sweep.subdir=${seed}", "hydra.sweep.subdir=1: jobs 0 and 1 would both run"),
        ("seed=1,2 hydra.sweep.dir=sweeps/${seed}", "job 1: hydra.sweep.dir=sweeps/2: it is of all jobs"),
        ("seed=1,2 hydra.sweep.dir=sweeps/${nothing}", "Interpolation key 'nothing' not found"),
        ("seed=1,2 data_seed=${nothing}", "job 0: data_seed takes nothing, which is not a key"),
        ("seed=0,9 max_rounds=1,2 eval.validation=${seed}${max_rounds}", "job 0: eval.validation="),
        (
            "train.lr=0.1,0.2 train.min_lr=${train.epochs} train.cosine=true",
            "job 0: train.epochs=2: the cosine ends at min_lr",
        ),
        ("hydra.launcher.n_jobs=2", "hydra.launcher.n_jobs belongs to hydra/launcher=joblib, which is not chosen here"),
        ("hydra/launcher=submitit_slurm", "hydra/launcher=submitit_slurm: there is no srun on this machine"),
    ],
)
def test_a_wrong_job_is_refused_before_the_first_begins(
    command: Command, tmp_path: Path, axis: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flnl.sweep.supervisor.shutil.which", lambda name: None)
    found = command(*FEDAVG, *axis.split())
    assert (found.code, found.err.count("\n")) == (2, 1), found.err
    assert said in found.err
    assert not list(tmp_path.glob("multirun/*/*/0"))


PRESET = """\
# @package _global_
hydra:
  sweeper:
    params:
      seed: 3,4
      output: runs/${{seed}}
max_rounds: 1
"""


@pytest.mark.parametrize(
    ("words", "folders", "values"),
    [
        ("seed=3,4 max_rounds=1 output=runs/${seed}", "runs/{data_seed}", (3, 4)),
        ("max_rounds=1,2 data_seed=${max_rounds}", "multirun/*/*/{number}", (1, 2)),
        ("max_rounds=1 seed=3,4 output=runs/${hydra:job.num}", "runs/{number}", (3, 4)),
        ("max_rounds=1 seed=3,4 output=${hydra:runtime.output_dir}/run", "multirun/*/*/{number}/run", (3, 4)),
        ("seed=${max_rounds},${rounds} max_rounds=1 rounds=2", "multirun/*/*/{number}", (1, 2)),
        ("local=preset", "runs/{data_seed}", (3, 4)),
    ],
)
def test_jobs_have_the_values_that_they_are_checked_with(
    words: str, folders: str, values: tuple[int, int], command: Command, tmp_path: Path
) -> None:
    """Each job resolves what it is given in its own configuration, also where a file gives it."""
    (tmp_path / "own" / "local").mkdir(parents=True)
    (tmp_path / "own" / "local" / "preset.yaml").write_text(PRESET.format())
    said = command("--config-dir", "own", *FEDAVG, *words.split())
    assert said.code == 0, said.err
    for number, value in enumerate(values):
        (folder,) = tmp_path.glob(folders.format(number=number, data_seed=value))
        assert record(folder)["config"]["data_seed"] == value


def test_a_value_that_is_computed_is_checked_in_every_job(command: Command, tmp_path: Path) -> None:
    """Each value of each axis is right in some job before the last, in which alone two of them do not fit."""
    said = command(*FEDAVG, "data_seed=${seed},${max_rounds}", "max_rounds=2,null")
    assert said.code == 2
    assert "job 3: max_rounds=null: must be a valid integer" in said.err  # of data_seed


def test_a_job_that_its_data_refuse_is_told_in_the_list(command: Command, tmp_path: Path) -> None:
    said = command(*FEDAVG, "partition.num_clients=8,171")
    assert said.code == 1
    assert statuses(only_sweep(tmp_path)) == ["finished", "refused"]
    assert "num_clients" in said.out
    assert not (only_sweep(tmp_path) / "1" / "error.log").exists()


@pytest.mark.parametrize("place", ["supervisor._check", "supervisor.Ledger"])
def test_a_sweep_that_does_not_begin_leaves_its_folder_free(
    place: str, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while something, here ``refused``, still holds the traceback, and with it the lock."""
    words, refused = [*FEDAVG, "seed=1,2", "max_rounds=1", "hydra.sweep.dir=here"], UserError("not this one")

    def refuse(*_: object) -> None:
        raise refused

    with monkeypatch.context() as patched:
        patched.setattr(f"flnl.sweep.{place}", refuse)
        assert "not this one" in command(*words).err
    assert refused.__traceback__ is not None
    assert command(*words).code == 0


def test_two_sweeps_in_one_second_share_nothing(launch: Launch, tmp_path: Path) -> None:
    both = [launch(*FEDAVG, f"seed={seeds}") for seeds in ("1,2", "3,4")]
    for running in both:
        assert running.wait().code == 0
    assert [statuses(s) for s in sweeps(tmp_path)] == [["finished", "finished"]] * 2
    seeds = [{record(s / n)["config"]["seed"] for n in "01"} for s in sweeps(tmp_path)]
    assert sorted(map(sorted, seeds)) == [[1, 2], [3, 4]]


def test_a_folder_is_one_sweeps_at_a_time(command: Command, launch: Launch, tmp_path: Path) -> None:
    words = [*FEDAVG, "seed=1,2", "hydra.sweep.dir=here"]
    first = launch(*words, "rounds=3000")
    first.until(lambda: lines_of(tmp_path / "here" / "0"), "round")
    said = command(*words)
    assert (said.code, said.err.count("\n")) == (2, 1)
    assert "hydra.sweep.dir=here is in use by another sweep" in said.err
    first.signal(signal.SIGKILL)
    first.wait()
    assert command(*FEDAVG, "seed=1,2", "rounds=3000", "hydra.sweep.dir=here", "max_rounds=1").code == 0


def test_started_again_in_its_own_folder_a_sweep_goes_on(command: Command, tmp_path: Path) -> None:
    """As a scheduler does with a job that ran out of time."""
    words = [*FEDAVG, "seed=1,2", "hydra.sweep.dir=here"]
    assert command(*words, "max_rounds=2").code == 0
    assert statuses(tmp_path / "here") == ["stopped", "stopped"]
    assert command(*words).code == 0
    assert [record(tmp_path / "here" / n)["rounds"] for n in "01"] == [5, 5]
    refused = command(*words, "train.lr=0.01")
    assert refused.code == 1
    assert statuses(tmp_path / "here") == ["refused", "refused"]
    assert "train.lr (0.05 there, 0.01 here)" in " ".join(refused.out.split())


def test_a_killed_sweep_goes_on_to_the_same_numbers(command: Command, launch: Launch, tmp_path: Path) -> None:
    words = [*FEDAVG, "seed=1,2,3", "rounds=25", "checkpoint.every=1"]
    running = launch(*words)
    running.until(lambda: [s for s in sweeps(tmp_path) if lines_of(s / "1") > 5], "round of the second job")
    running.signal(signal.SIGKILL)
    running.wait()
    first = only_sweep(tmp_path)
    assert statuses(first) == ["finished", "killed", "waiting"]
    done = (first / "0" / "metrics.jsonl").read_bytes()
    said = command(*words, "resume=true")
    assert said.code == 0
    assert f"{first.relative_to(tmp_path)}/1 goes on" in said.err
    second = next(s for s in sweeps(tmp_path) if s != first)
    assert statuses(second) == ["finished"] * 3
    assert (first / "0" / "metrics.jsonl").read_bytes() == done
    assert command(*words, "hydra.sweep.dir=unbroken").code == 0
    for number, folder in enumerate((first / "0", first / "1", second / "2")):
        assert Ran(folder, {}).lines == Ran(tmp_path / "unbroken" / str(number), {}).lines


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_sweep_with_its_list(launch: Launch, tmp_path: Path, number: int, code: int) -> None:
    running = launch(*FEDAVG, "seed=1,2,3", "rounds=3000")
    running.until(lambda: [s for s in sweeps(tmp_path) if lines_of(s / "0")], "round")
    running.signal(number)
    said = running.wait()
    assert said.code == code
    assert statuses(only_sweep(tmp_path)) == ["interrupted", "waiting", "waiting"]
    assert "3 jobs: 1 interrupted, 2 waiting" in said.out
    assert said.err.count("to go on:") == 1
    assert list((only_sweep(tmp_path) / "0" / "checkpoints").glob("*.pt"))


MOMENTS = {
    "opening": ("flnl.run.opening.open_session", "interrupted"),
    "the last round": ("flnl.run.progress.Bar.round", "finished"),
    "ending": ("flnl.run.session.Session.close", "finished"),
    "printing": ("flnl.run.progress.closing", "finished"),
    "recording": ("flnl.sweep.ledger.Ledger.write", "finished"),
}
"""Where the signal arrives, and the status of the job then."""


def signalled(monkeypatch: pytest.MonkeyPatch, moment: str, number: int) -> None:
    """Send the signal once: with a result, in the last round or once the job has ended."""
    owner, _, name = MOMENTS[moment][0].rpartition(".")
    parts = owner.split(".")
    owned = any(part[0].isupper() for part in parts)
    holder: Any = importlib.import_module(".".join(parts[:-1] if owned else parts))
    holder = getattr(holder, parts[-1]) if owned else holder
    whole = getattr(holder, name)
    sent: list[int] = []

    def sending(*words: Any, **named: Any) -> Any:
        last = words[-1]
        early = (isinstance(last, Job) and not last.ended) or (
            isinstance(last, RoundResult) and last.state.round < LAST
        )
        if not sent and not early:
            sent.append(number)
            os.kill(os.getpid(), number)
        return whole(*words, **named)

    monkeypatch.setattr(holder, name, sending)


LAST = 2
ENDING = [*FEDAVG, f"rounds={LAST}"]


@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_at_any_moment_of_a_job_ends_the_sweep(
    number: int, code: int, moment: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that ends nevertheless has finished; the sweep goes no further, and goes on later."""
    status = MOMENTS[moment][1]
    with monkeypatch.context() as patched:
        signalled(patched, moment, number)
        said = command(*ENDING, "seed=1,2,3")
    sweep = only_sweep(tmp_path)
    assert (said.code, statuses(sweep)) == (code, [status, "waiting", "waiting"]), said.err
    assert Ledger(sweep).jobs()[0].error == (None if status == "finished" else signal.Signals(number).name)
    assert f"3 jobs: 1 {status}, 2 waiting" in said.out
    (line,) = re.findall(r"to go on: flnl (.*)", said.err)
    again = command(*shlex.split(line))
    assert (again.code, statuses(sweep)) == (0, ["finished"] * 3), again.err


@pytest.mark.parametrize("moment", ["the last round", "ending"])
def test_a_signal_in_the_last_round_of_the_last_job_is_the_commands_status(
    moment: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled(monkeypatch, moment, signal.SIGTERM)
    said = command(*ENDING, "seed=1")
    assert (said.code, statuses(only_sweep(tmp_path))) == (143, ["finished"])
    assert "to go on" not in said.err


@pytest.mark.parametrize("moment", ["the last round", "ending"])
def test_a_single_run_that_ends_with_a_signal_has_its_status(
    moment: str, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signalled(monkeypatch, moment, signal.SIGTERM)
    said = command(*ENDING[1:], "output=run")
    assert (said.code, record(tmp_path / "run")["status"]) == (143, "finished")
    assert "to go on" not in said.err


def test_a_job_that_begins_while_the_sweep_is_stopped_ends_before_its_first_round(
    command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between its look at whether the sweep stops and its word that it runs, no signal reaches it."""
    whole = Ledger.write

    def stopped_meanwhile(self: Ledger, job: Job) -> None:
        if job.status == "running":
            self.stop(signal.SIGINT)
        whole(self, job)

    monkeypatch.setattr(Ledger, "write", stopped_meanwhile)
    said = command(*ENDING, "seed=1,2")
    sweep = only_sweep(tmp_path)
    assert (said.code, statuses(sweep)) == (130, ["interrupted", "waiting"])
    assert not (sweep / "0" / "result.json").exists()


@pytest.mark.slow  # its workers start anew
def test_a_signal_in_the_last_round_ends_a_sweep_in_parallel(launch: Launch, tmp_path: Path) -> None:
    """The job that runs has finished by then; the other one does not run to its end."""
    running = launch(*FEDAVG, "seed=1,2", "rounds=400", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1")
    until(lambda: [s for s in sweeps(tmp_path) if [*map(rounds_done, Ledger(s).jobs()[:1])] == [400]])
    running.signal(signal.SIGTERM)
    assert running.wait().code == 143
    first, second = statuses(only_sweep(tmp_path))
    assert first == "finished"
    assert second in ("waiting", "interrupted")


def test_a_file_in_the_place_of_the_sweeps_folder(command: Command, tmp_path: Path) -> None:
    (tmp_path / "taken").touch()
    for folder in ("taken", "taken/below"):
        said = command(*FEDAVG, "seed=1,2", f"hydra.sweep.dir={folder}")
        assert (said.code, said.err.count("\n")) == (2, 1)
        assert f"hydra.sweep.dir={folder}: " in said.err


def test_each_job_has_its_own_mirror_and_they_are_named_once(command: Command, tmp_path: Path) -> None:
    said = command(*FAILING, "wandb.mode=offline")
    sweep = only_sweep(tmp_path)
    assert [len(list(sweep.glob(f"{n}/wandb/offline-run-*/*.wandb"))) for n in "012"] == [1, 1, 1]
    assert said.err.count("wandb sync") == 1
    assert f"wandb sync {sweep.relative_to(tmp_path)}/*/wandb/offline-run-*" in said.err


def test_the_mirrors_of_runs_that_went_on_elsewhere_are_named_too(tmp_path: Path) -> None:
    own, other = str(tmp_path / "now/0/wandb/offline-run-1"), "/before/0/wandb/offline-run-2"
    assert _patterns([own, other], tmp_path / "now") == [f"{tmp_path}/now/*/wandb/offline-run-*", other]
    assert _patterns([other], tmp_path / "now") == [other]
    assert _patterns([], tmp_path) == []


# ---------------------------------------------------------------------------------------- jobs in their own processes


def start(tmp_path: Path, *words: str) -> "subprocess.Popen[str]":
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "flnl", *words]
    pipe = subprocess.PIPE
    return subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=pipe, stderr=pipe, text=True, start_new_session=True
    )


def until(condition: Callable[[], object], seconds: float = 120.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def logged(sweep: Path) -> None:
    """Of a sweep whose first job has finished and whose second has failed: each said so in its own log."""
    assert "NonFiniteError" in (sweep / "1" / "job.log").read_text()
    assert "NonFiniteError" in (sweep / "1" / "error.log").read_text()
    assert "best test accuracy" in (sweep / "0" / "job.log").read_text()
    assert record(sweep / "0")["threads"] == 1


@pytest.mark.slow  # each job imports everything; the workers of joblib, below, go the same way through ``sweep.job``
def test_jobs_of_submitit_fail_and_are_killed_alone_and_say_so_in_their_own_logs(tmp_path: Path) -> None:
    """The killed one is before others, for which the sweep has to wait."""
    words = [*FAILING[:-1], "train.lr=0.05,1e30,0.01,0.02", "rounds=300"]
    running = start(tmp_path, *words, "hydra/launcher=submitit_local")
    until(lambda: [s for s in sweeps(tmp_path) if lines_of(s / "2") > 1])
    (sweep,) = sweeps(tmp_path)
    os.kill(Ledger(sweep).jobs()[2].pid, signal.SIGKILL)
    out, err = running.communicate(timeout=240)
    assert (running.returncode, statuses(sweep)) == (1, ["finished", "failed", "killed", "finished"]), err
    logged(sweep)
    assert "best test accuracy" not in out + err
    assert "Traceback" not in out + err
    assert "4 jobs: 2 finished, 1 failed, 1 killed" in out
    assert len(re.findall(r"^\[\d/4\] job \d (?:finished|failed|killed)\b.*train\.lr=", err, re.M)) == 4


@pytest.mark.slow  # its workers start anew; failing, stopping and a killed sweep are tested below and above
def test_jobs_in_parallel_fail_and_are_killed_alone(command: Command, tmp_path: Path) -> None:
    """One diverges, the worker of another runs out of memory, say; those beside and after them come to their end."""
    words = [*FAILING[:-1], "train.lr=0.05,1e30,0.01,0.02", "rounds=60", "checkpoint.every=1"]
    running = start(tmp_path, *words, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    until(lambda: [s for s in sweeps(tmp_path) if lines_of(s / "2") > 1])
    (sweep,) = sweeps(tmp_path)
    os.kill(Ledger(sweep).jobs()[2].pid, signal.SIGKILL)
    out, err = running.communicate(timeout=240)
    assert (running.returncode, statuses(sweep)) == (1, ["finished", "failed", "killed", "finished"]), err
    logged(sweep)
    assert "best test accuracy" not in out + err
    assert "Traceback" not in out + err
    assert "4 jobs: 2 finished, 1 failed, 1 killed" in out
    assert len(re.findall(r"^\[\d/4\] job \d (?:finished|failed|killed)\b.*train\.lr=", err, re.M)) == 4
    assert re.search(rf"to go on: .* hydra\.sweep\.dir=\S*{re.escape(sweep.name)}$", err, re.M)
    again = command(*words, "resume=true")
    assert again.code == 1
    assert "going on after round" in again.err
    assert record(sweep / "2")["status"] == "finished"


@pytest.mark.slow  # its workers start anew; a signal to a sweep and to jobs of joblib is tested above and below
def test_a_stop_reaches_jobs_in_parallel_which_save_and_go_on(command: Command, launch: Launch, tmp_path: Path) -> None:
    """Ctrl-C in a terminal: every process of the group gets the signal, and each job must take it once."""
    words = [*FEDAVG, "seed=1,2,3", "rounds=3000"]
    running = launch(*words, "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    until(lambda: [s for s in sweeps(tmp_path) if lines_of(s / "0") and lines_of(s / "1")])
    os.killpg(running.pid, signal.SIGINT)
    said = running.wait()
    sweep = only_sweep(tmp_path)
    assert (said.code, statuses(sweep)) == (130, ["interrupted", "interrupted", "waiting"]), said.err
    assert "Traceback" not in said.out + said.err
    assert [job.error for job in Ledger(sweep).jobs()] == ["SIGINT", "SIGINT", None]
    reached = record(sweep / "0")["rounds"]
    assert reached > 0
    assert (sweep / "0" / "checkpoints" / f"round_{reached:08d}.pt").exists()
    again = command(*words, "resume=true", f"max_rounds={reached + 1}")
    assert f"going on after round {reached}" in again.err


@pytest.mark.slow
def test_jobs_whose_sweep_was_killed_save_and_end(launch: Launch, tmp_path: Path) -> None:
    words = [*FEDAVG, "seed=1,2", "rounds=100000", "hydra/launcher=joblib", "hydra.launcher.n_jobs=1"]
    running = launch(*words)
    until(lambda: [s for s in sweeps(tmp_path) if lines_of(s / "0")])
    sweep = only_sweep(tmp_path)
    worker = Path("/proc", str(Ledger(sweep).jobs()[0].pid))
    assert worker.exists()
    running.signal(signal.SIGKILL)
    running.wait()
    until(lambda: not worker.exists(), 60)
    assert statuses(sweep) == ["interrupted", "waiting"]
    assert record(sweep / "0")["status"] == "interrupted"


@pytest.mark.slow  # its workers start anew
@pytest.mark.parametrize("begun", [False, True])
def test_workers_that_start_or_wait_end_with_their_sweep(begun: bool, launch: Launch, tmp_path: Path) -> None:
    """Also those that have got no job yet, which nobody would give them any more."""
    running = launch(*FEDAVG, "seed=1,2,3", "rounds=100000", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2")
    until(lambda: any("loky" in command_of(pid) for pid in children(running.pid)))
    if begun:
        until(lambda: [s for s in sweeps(tmp_path) if lines_of(s / "0")])
    workers = children(running.pid)
    running.signal(signal.SIGKILL)
    running.wait()
    until(lambda: not any(map(command_of, workers)), 60)


def children(pid: int) -> list[int]:
    return [int(one) for file in Path("/proc", str(pid)).glob("task/*/children") for one in file.read_text().split()]


def command_of(pid: int) -> str:
    """What a process runs; empty once it has ended."""
    try:
        return Path("/proc", str(pid), "cmdline").read_text()
    except OSError:
        return ""


# ----------------------------------------------------------------------------------------------------------- the parts


def test_a_job_is_called_by_what_tells_it_from_the_others() -> None:
    jobs = [Job(0, ["method=fedavg", "seed=1"]), Job(1, ["method=fedavg", "seed=2"])]
    assert labels(jobs) == {0: "seed=1", 1: "seed=2"}
    assert labels(jobs[:1]) == {0: "method=fedavg seed=1"}


def test_a_running_job_is_read_up_to_its_last_whole_line(tmp_path: Path) -> None:
    job = Job(0, [], "running", str(tmp_path))
    assert rounds_done(job) == 0
    (tmp_path / "metrics.jsonl").write_text('{"round": 1}\n{"round": 2}\n{"rou')
    assert rounds_done(job) == 2
    (tmp_path / "metrics.jsonl").write_text('{"round": 3, "long": "' + "x" * 9000 + '"}\n{"round": 4}\n')
    assert rounds_done(job) == 4


def test_an_accuracy_of_nothing_is_a_score_for_a_sweeper_that_optimises() -> None:
    assert score(Job(0, [], "finished", metrics={"mean_last_10": 0.0})) == 0.0
    assert math.isnan(score(Job(0, [], "failed")))


def test_a_job_without_a_word_was_killed_unless_it_is_elsewhere(tmp_path: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    ledger = Ledger(tmp_path)
    ledger.plan([["seed=1"], ["seed=2"], ["seed=3"], ["seed=4"]], [])
    here = os.uname().nodename
    ledger.write(Job(0, ["seed=1"], "running", host=here, pid=ended.pid))
    ledger.write(Job(1, ["seed=2"], "running", host=here, pid=os.getpid()))
    ledger.write(Job(2, ["seed=3"], "running", host="elsewhere", pid=ended.pid))
    assert statuses(tmp_path) == ["killed", "running", "running", "waiting"]
    ledger.close()  # the launcher has seen the end of all, those elsewhere too
    assert statuses(tmp_path) == ["killed", "killed", "killed", "waiting"]
    (tmp_path / "jobs" / "1.json").write_text('{"numb')
    assert statuses(tmp_path)[1] == "waiting"
