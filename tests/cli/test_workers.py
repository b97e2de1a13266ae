"""A run with worker processes from outside: deaths of workers and of the run itself, signals, exit codes."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from tests.cli.conftest import Command, Launch, Running, lines_of
from tests.engine.executors import jobs
from tests.properties.runs import Ran, run, without_times
from tests.registry import TINY

LONG = [
    *(word for word in TINY if not word.startswith("executor=")),
    "method=fedavg",
    "rounds=30",
    "train.epochs=8",
    "checkpoint.every=1",
    "products=false",
]
WORKERS = ("executor=processes", "executor.workers=2", "output=run")


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The same run in one process."""
    return run(LONG, tmp_path_factory.mktemp("unbroken") / "run", "executor=sequential")


def workers_of(running: Running) -> list[int]:
    """The processes that a run has started."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            if int(stat.read_text().rpartition(")")[2].split()[1]) == running.pid:
                found.append(int(stat.parent.name))
        except OSError:
            continue
    return sorted(found)


def begun(running: Running, folder: Path) -> list[int]:
    running.until(lambda: lines_of(folder) >= 3 and len(workers_of(running)) == 2, "two workers at work")
    return workers_of(running)


def gone(processes: list[int]) -> bool:
    return not any(Path(f"/proc/{process}").exists() for process in processes)


def assert_same(folder: Path, unbroken: Ran) -> None:
    assert without_times(folder / "metrics.jsonl") == unbroken.lines
    record = json.loads((folder / "result.json").read_text())
    assert record["metrics"] == json.loads(json.dumps(unbroken.record["metrics"]))


def test_a_killed_worker_changes_nothing(launch: Launch, tmp_path: Path, unbroken: Ran) -> None:
    running = launch(*LONG, *WORKERS)
    first = begun(running, tmp_path / "run")
    os.kill(first[0], signal.SIGKILL)
    running.until(lambda: len(set(workers_of(running)) - set(first)) == 1, "another worker")
    said = running.wait()
    assert said.code == 0
    assert said.err.count("was killed by signal 9 while it ran client") == 1
    assert "Traceback" not in said.err
    assert_same(tmp_path / "run", unbroken)


def test_workers_do_not_outlive_a_killed_run_and_hold_nothing(launch: Launch, tmp_path: Path, unbroken: Ran) -> None:
    running = launch(*LONG, *WORKERS)
    workers = begun(running, tmp_path / "run")
    running.signal(signal.SIGKILL)
    assert running.wait().code == 137
    end = time.monotonic() + 5
    while not gone(workers):
        assert time.monotonic() < end, "orphans"
        time.sleep(0.01)
    said = launch(*LONG, *WORKERS, "resume=true").wait()
    assert said.code == 0, said.err
    assert_same(tmp_path / "run", unbroken)


def test_neither_do_those_in_the_middle_of_a_client(launch: Launch, tmp_path: Path) -> None:
    """Whose end of the connection nobody reads."""
    running = launch(
        *LONG, *WORKERS, "executor.start=fork", "method.batch._target_=tests.engine.executors.jobs.Endless"
    )
    running.until(lambda: len(workers_of(running)) == 2, "two workers")
    workers = workers_of(running)
    time.sleep(1)
    running.signal(signal.SIGKILL)
    running.wait()
    end = time.monotonic() + 5
    while not gone(workers):
        assert time.monotonic() < end, "orphans"
        time.sleep(0.01)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), pytest.param(signal.SIGINT, 130, marks=pytest.mark.slow)]
)
def test_a_signal_to_all_finishes_the_round(
    number: signal.Signals, code: int, launch: Launch, tmp_path: Path, unbroken: Ran
) -> None:
    """As from a terminal or a scheduler, which tell every process of the group."""
    running = launch(*LONG, *WORKERS)
    workers = begun(running, tmp_path / "run")
    os.killpg(running.pid, number)
    said = running.wait()
    assert said.code == code
    assert said.err.count("stopping after this round") == 1
    assert "while it ran" not in said.err
    assert gone(workers)
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "interrupted"
    assert launch(*LONG, *WORKERS, "resume=true").wait().code == 0
    assert_same(tmp_path / "run", unbroken)


def test_clients_that_kill_their_workers_fail_the_run_in_one_line(command: Command, tmp_path: Path) -> None:
    words = [w for w in LONG if not w.startswith("checkpoint")]
    deadly = "method.batch._target_=tests.engine.executors.jobs.Deadly"
    assert os.getpid() == jobs.IMPORTED_BY
    said = command(*words, *WORKERS, deadly, "executor.start=fork")
    assert said.code == 1
    (line,) = [line for line in said.err.splitlines() if line.startswith("error:")]
    assert "cost 3 workers" in line
    assert "executor.workers" in line
    assert "Traceback" not in said.err
    assert json.loads((tmp_path / "run" / "result.json").read_text())["status"] == "failed"
