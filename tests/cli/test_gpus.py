"""A sweep on several GPUs: which job gets which, how many run at once, and what is said and recorded of it."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
import torch
from hydra.core.hydra_config import HydraConfig

from flnl.config.compose import load, resolved
from flnl.core.errors import UserError
from flnl.run.budget import training_kind
from flnl.run.paces_here import cards_here
from flnl.storage.paces import Pace, Paces
from flnl.sweep.gpus import MPS, Share
from flnl.sweep.ledger import Ledger
from flnl.sweep.workers import Crew, unfinished
from tests.cli.conftest import ROOT, Command, lines_of
from tests.registry import BY_NAME
from tests.simulated_gpu import device
from tests.simulated_gpu.library import UnavailableError, built

VISIBLE = "CUDA_VISIBLE_DEVICES"
FEDAVG = ["-m", *BY_NAME["fedavg"].words]
HINT = "would run 2, flnl doctor --jobs measures how many are best"
JOBLIB = ("hydra/launcher=joblib", "products=false")


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Make torch find so many GPUs."""

    def found(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    monkeypatch.delenv(VISIBLE, raising=False)
    yield found
    HydraConfig.instance().cfg = None  # that of a sweep, which tests after these are not jobs of


def names(share: Share, count: int) -> list[str | None]:
    return [share.environment(worker).get(VISIBLE) for worker in range(count)]


@pytest.mark.parametrize(
    ("count", "jobs", "n_jobs", "workers", "said"),
    [
        (2, 6, -1, 2, f"6 jobs on 2 GPUs, 1 at a time on each; hydra.launcher.n_jobs=4 {HINT}"),
        (2, 6, 4, 4, "6 jobs on 2 GPUs, 2 at a time on each"),
        (2, 6, 3, 3, "6 jobs on 2 GPUs, up to 2 at a time on each"),
        (2, 6, 1, 1, f"6 jobs on 1 GPU, 1 at a time; hydra.launcher.n_jobs=2 {HINT}"),
        (1, 6, -1, 1, f"6 jobs on 1 GPU, 1 at a time; hydra.launcher.n_jobs=2 {HINT}"),
        (1, 6, 3, 3, "6 jobs on 1 GPU, 3 at a time"),
        (8, 2, -1, 2, "2 jobs on 2 GPUs, 1 at a time on each"),
        (8, 1, -1, 1, "1 job on 1 GPU, 1 at a time"),
    ],
)
def test_workers_take_the_gpus_in_turn(
    count: int,
    jobs: int,
    n_jobs: int,
    workers: int,
    said: str,
    gpus: Callable[[int], None],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpus(count)
    monkeypatch.setenv(MPS, str(tmp_path))
    if workers > count:
        told = Share.of({"cuda"}, jobs, n_jobs).told(jobs)
        assert told == f"{said}; they take turns there: nvidia-cuda-mps-control -d lets their kernels run side by side"
    (tmp_path / "control").touch()  # of the service
    for kind in ("auto", "cuda"):
        share = Share.of({kind}, jobs, n_jobs)
        assert share.workers == workers
        assert names(share, workers) == [str(worker % count) for worker in range(workers)]
        assert share.told(jobs) == said


def test_gpus_that_the_user_has_chosen_are_shared_out(
    gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus(2)
    monkeypatch.setenv(VISIBLE, "2,3")
    assert names(Share.of({"auto"}, 9, 4), 4) == ["2", "3", "2", "3"]
    assert names(Share.of({"cpu", "cuda"}, 9, -1), 2) == ["2", "3"]


def test_more_than_one_at_a_time_needs_jobs_that_take_any_gpu(gpus: Callable[[int], None]) -> None:
    gpus(2)
    assert Share.of({"cuda"}, 9, -1, lambda kind: 3).workers == 6
    for devices in ({"cuda:0", "cuda:1"}, {"cuda", "cuda:1"}, {"cuda", "cpu"}):
        assert Share.of(devices, 9, -1, lambda kind: 3).workers == 2
    best = Share.of({"cuda"}, 9, -1, lambda kind: 1).told(9)  # nothing to try: it was measured
    assert best == "9 jobs on 2 GPUs, 1 at a time on each"


def test_jobs_that_name_their_gpus_see_all(gpus: Callable[[int], None]) -> None:
    gpus(4)
    one, two = Share.of({"cuda:3"}, 6, -1), Share.of({"cuda:3", "auto"}, 6, -1)
    assert (one.gpus, one.workers, names(one, 1)) == (("cuda:3",), 1, [None])
    assert (two.gpus, two.workers, names(two, 2)) == (("cuda:0", "cuda:3"), 2, [None, None])
    with pytest.raises(UserError, match="device=cuda:4, but torch finds only cuda:0 to cuda:3 here"):
        Share.of({"cuda:4"}, 6, -1)


def test_nothing_changes_without_a_gpu(gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("joblib.effective_n_jobs", lambda n_jobs: 5 if n_jobs == -1 else n_jobs)
    for count, kind in ((0, "auto"), (2, "cpu")):
        gpus(count)
        share = Share.of({kind}, 9, -1)
        assert (share.gpus, share.workers, names(share, 5)) == ((), 5, [None] * 5)
        assert Share.of({kind}, 9, 3).workers == 3
        assert Share.of({kind}, 3, -1).workers == 3


def test_the_gpu_of_a_dead_worker_is_its_successors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first job runs until all others have ended, so these have one GPU; no job waits for the one that is busy."""
    ran: dict[int, str] = {}
    others_ended = Event()

    class Pool:
        """A worker in this process, which dies of the second job."""

        def __init__(self, *, env: dict[str, str], **_: Any) -> None:
            self.environment = env

        def submit(self, task: Any, number: int, *_: Any) -> "Future[str]":
            ran[number] = self.environment[VISIBLE]
            future: Future[str] = Future()
            if number == 1:
                future.set_exception(BrokenProcessPool())
            elif number == 0:
                Thread(target=lambda: future.set_result(str(others_ended.wait(20))), daemon=True).start()
            else:
                future.set_result("")
                if number == 4:
                    others_ended.set()
            return future

        def shutdown(self, **_: Any) -> None:
            """It has nothing to end."""

    monkeypatch.setattr("joblib.externals.loky.ProcessPoolExecutor", Pool)
    jobs: list[tuple[int, Sequence[str]]] = [(number, []) for number in range(5)]
    crew = Crew(iter(jobs[2:]), (), Share(("5", "7"), "cuda", 2))
    threads = [Thread(target=crew.work, args=(number, jobs[number])) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert ran == {0: "5", 1: "7", 2: "7", 3: "7", 4: "7"}
    assert str(crew.results[0]) == "True"


def test_each_gpu_whose_memory_others_hold_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    class Inline:
        """A process that is this one."""

        map = staticmethod(map)

        def __init__(self, *_: Any, **__: Any) -> None:
            pass

        def __enter__(self) -> "Inline":
            return self

        def __exit__(self, *_: object) -> None:
            pass

    monkeypatch.setattr("joblib.externals.loky.ProcessPoolExecutor", Inline)
    monkeypatch.setattr("flnl.engine.placement.taken", lambda place: f"{place} is full" if place.index else None)
    assert Share(("5", "7", "8"), "cuda", 2).warnings() == ["cuda:1 is full", "cuda:2 is full"]
    assert Share(("cuda:0", "cuda:3"), None, 2).warnings() == ["cuda:3 is full"]

    def lost(place: object) -> None:
        raise RuntimeError("CUDA error")

    monkeypatch.setattr("flnl.engine.placement.taken", lost)
    assert Share(("5",), "cuda", 1).warnings() == []


def test_a_sweep_begins_with_its_gpus(
    command: Command, gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def work(crew: Crew, number: int, job: Any) -> None:
        crew.results[job[0]] = unfinished(job[1])

    monkeypatch.setattr(Crew, "work", work)
    monkeypatch.setattr(Share, "warnings", lambda share: ["cuda:1 is full"])
    gpus(2)
    said = command(*FEDAVG, "seed=1,2", *JOBLIB)
    assert "2 jobs on 2 GPUs, 1 at a time on each\nwarning: cuda:1 is full\n" in said.err
    said = command(*FEDAVG, "seed=1,2", *JOBLIB, "device=cpu")
    assert "GPU" not in said.err + said.out


def test_a_sweep_runs_as_many_jobs_on_a_gpu_as_the_doctor_found_best(
    command: Command, tmp_path: Path, gpus: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it has timed all trainings of the sweep, and only where the user gives no number."""

    def work(crew: Crew, number: int, job: Any) -> None:
        crew.results[job[0]] = unfinished(job[1])

    def looked(look: Callable[..., Any], *at: Any) -> list[Any]:
        return [{"a GPU"} for _ in at] if look is cards_here else []

    monkeypatch.setattr(Crew, "work", work)
    monkeypatch.setattr("flnl.sweep.gpus.seen", looked)
    monkeypatch.setattr("flnl.sweep.workers.seen", looked)
    monkeypatch.setattr("flnl.sweep.dry_run.cards_here", lambda kind: {"a GPU"})
    monkeypatch.setenv("FLNL_CACHE", str(tmp_path / "cache"))
    dataset, model, precision, batch = training_kind(resolved(load([*FEDAVG[1:]])))
    Paces([Pace(dataset, model, batch, "a GPU", True, 9.0 / n, precision, n) for n in (1, 3)]).save(tmp_path / "cache")
    gpus(2)
    for words, expected in (
        ((), "up to 3 at a time on each"),
        (("hydra.launcher.n_jobs=4",), "2 at a time on each"),
        (("train.batch_size=10,64",), f"1 at a time on each; hydra.launcher.n_jobs=4 {HINT}"),
        (("cache=elsewhere",), "up to 3 at a time on each"),  # of federations; the doctor has its own
    ):
        seeds = "seed=1,2,3,4,5"
        assert f" jobs on 2 GPUs, {expected}" in command(*FEDAVG, seeds, *JOBLIB, *words).err
        assert f" jobs on 2 GPUs, {expected}" in command(*FEDAVG, seeds, *JOBLIB, *words, "--dry-run").out


def test_a_gpu_that_is_not_there_is_refused_before_the_first_job(
    command: Command, tmp_path: Path, gpus: Callable[[int], None]
) -> None:
    gpus(2)
    for launcher in ((), JOBLIB):
        said = command(*FEDAVG, "device=cuda:2", "seed=1,2", "hydra.sweep.dir=sweep", *launcher)
        assert said.code == 2
        expected = (
            "job 0: device=cuda:2, but torch finds only cuda:0 to cuda:1 here: use one of these; no job has begun"
        )
        assert expected in said.err
        assert said.err.count("\n") == 1
    assert not [*tmp_path.rglob("result.json")]


def test_a_dry_run_tells_of_the_gpus(command: Command, gpus: Callable[[int], None]) -> None:
    gpus(2)
    said = command(*FEDAVG, "seed=1,2,3", *JOBLIB, "hydra.launcher.n_jobs=6", "--dry-run")
    assert "JoblibLauncher, 3 jobs on 2 GPUs, up to 2 at a time on each" in said.out, said.err


# --------------------------------------------------------------------------------------------------- simulated GPUs


def environment(**more: str) -> dict[str, str]:
    places = os.pathsep.join(map(str, (ROOT / "src", ROOT, device.SITE)))
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    return {**os.environ, **threads, "PYTHONPATH": places, "FLNL_SIMULATED_GPU": "2", **more}


@pytest.mark.slow  # its workers start anew
def test_a_sweep_on_two_simulated_gpus(tmp_path: Path) -> None:
    """The user's second and third; the worker of the second job is killed, and the third job takes its GPU."""
    try:
        built()
    except UnavailableError as reason:
        pytest.skip(str(reason))
    words = [*FEDAVG, "device=sim", "seed=1,2,3", "rounds=60", *JOBLIB, "hydra.sweep.dir=sweep"]
    running = subprocess.Popen(
        [sys.executable, "-m", "flnl", *words],
        cwd=tmp_path,
        env=environment(**{VISIBLE: "2,3"}),
        stderr=subprocess.PIPE,
        text=True,
    )
    sweep, end = tmp_path / "sweep", time.monotonic() + 120
    while not (lines_of(sweep / "0") and lines_of(sweep / "1")):
        assert time.monotonic() < end
        assert running.poll() is None
        time.sleep(0.05)
    first, second = Ledger(sweep).jobs()[:2]
    os.kill(first.pid, signal.SIGSTOP)  # it is still busy when the third job begins
    os.kill(second.pid, signal.SIGKILL)
    while not lines_of(sweep / "2"):
        assert time.monotonic() < end
        time.sleep(0.05)
    os.kill(first.pid, signal.SIGCONT)
    said = running.communicate(timeout=120)[1]
    assert [job.status for job in Ledger(sweep).jobs()] == ["finished", "killed", "finished"], said
    records = {number: json.loads((sweep / number / "result.json").read_text()) for number in "02"}
    named = {"name": "simulated GPU"}
    assert {number: one["gpu"] for number, one in records.items()} == {
        "0": {"id": "2", **named},
        "2": {"id": "3", **named},
    }
    assert {one["device"] for one in records.values()} == {"sim:0"}  # a worker sees one GPU
    assert re.search(rf"^3 jobs on 2 GPUs, 1 at a time on each; hydra\.launcher\.n_jobs=4 {HINT}$", said, re.M)
    assert "other processes hold" not in said
