"""Killed in the middle and run again, the tables are those of a run that nobody disturbed, to the byte."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT
from tests.registry import TINY

PATIENCE = 240.0
COMMAND = """\
import sys
from pathlib import Path
from flnl.commands import tables
from flnl.instruments.tables import load
load.TABLES, load.SCALES, load.CONF = Path("table").resolve(), Path("scale").resolve(), Path("conf").resolve()
tables.main()
"""
WORDS = ("dataset=digits", "protocol=digits", *TINY, "rounds=40", "checkpoint.every=1")
SCALE = f"title: tiny\nchanges: [All is tiny.]\nseeds: [1]\noverrides: {json.dumps(WORDS)}\n"
TABLE = """\
title: mine
metric: {name: best test accuracy, unit: "%", key: best, higher_is_better: true}
columns:
  - {label: a, overrides: [noise.rho=0.0]}
  - {label: b, overrides: [noise.rho=0.8]}
rows:
  - {label: FedAvg, overrides: [method=fedavg], cells: [90, 80]}
  - {label: FedProx, overrides: [method=fedprox], cells: [91, 70]}
"""


class Place:
    """A folder with one table of four cells, where the command is run."""

    def __init__(self, top: Path) -> None:
        for folder, text in (("table/mine.yaml", TABLE), ("scale/small.yaml", SCALE)):
            (top / folder).parent.mkdir(parents=True)
            (top / folder).write_text(text)
        self.top = top
        self.started: list[subprocess.Popen[str]] = []
        self.runs = top / "multirun" / "tables" / "small"

    def start(self, *words: str) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-c", COMMAND, *words]
        with (self.top / "said").open("a") as said:
            found = subprocess.Popen(
                command, cwd=self.top, env=environment, stdout=said, stderr=said, text=True, start_new_session=True
            )
        self.started.append(found)
        return found

    def run(self, *words: str) -> None:
        assert self.start(*words).wait(PATIENCE) == 0, (self.top / "said").read_text()

    def tables(self) -> dict[str, bytes]:
        """What is rendered, but for the page and the index, which say how long runs took."""
        self.run("render", "mine")
        found = {path.name: path.read_bytes() for path in (self.top / "results" / "small").glob("mine.*")}
        assert len(found) == 3
        return found

    def finished(self) -> int:
        return sum('"status": "finished"' in file.read_text() for file in self.runs.glob("*/result.json"))

    def amid(self, command: int) -> int:
        """Wait until a run of this command has left a checkpoint; gives the worker's process."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            for worker in workers(command):
                for job in self.runs.glob("jobs/*.json"):
                    with suppress(ValueError):
                        said = json.loads(job.read_text())
                        if said.get("pid") == worker and list(Path(said["folder"]).glob("checkpoints/*.pt")):
                            return worker
            time.sleep(0.005)
        raise AssertionError((self.top / "said").read_text())


WORKERS = ("--", "hydra.launcher.n_jobs=2")


@pytest.fixture
def places(tmp_path: Path) -> Iterator[tuple[Place, Place]]:
    """Two, of which nothing runs on when the test is over."""
    found = Place(tmp_path / "undisturbed"), Place(tmp_path / "killed")
    yield found
    for place in found:
        for process in place.started:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def workers(parent: int) -> list[int]:
    """The processes that run jobs for a command."""
    found = []
    for children in Path(f"/proc/{parent}/task").glob("*/children"):  # a thread may have started them
        with suppress(OSError):
            found += [int(child) for child in children.read_text().split() if _is_worker(child)]
    return found


def _is_worker(process: str) -> bool:
    with suppress(OSError):
        return "popen_loky" in Path(f"/proc/{process}/cmdline").read_text()
    return False


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found in /proc")
def test_killed_and_run_again_it_ends_with_the_same_tables(places: tuple[Place, Place]) -> None:
    """First the command, whose workers are left behind; then, when it goes on, a worker."""
    undisturbed, place = places
    undisturbed.run("run", "mine", "--", "hydra/launcher=basic")
    for whom in ("command", "worker"):
        running = place.start("run", "mine", *WORKERS)
        worker = place.amid(running.pid)
        os.kill(running.pid if whom == "command" else worker, signal.SIGKILL)
        assert running.wait(PATIENCE) != 0
        assert place.finished() < 4, "killed too late to show anything"
    place.run("run", "mine", *WORKERS)
    assert place.finished() == 4
    assert place.tables() == undisturbed.tables()
