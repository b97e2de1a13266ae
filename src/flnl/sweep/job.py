"""One job of a sweep: run it, record its outcome, and isolate its failures from other jobs."""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig

from flnl.console.credentials import redacted
from flnl.console.terminal import print_line
from flnl.core.errors import Interrupted, UserError, in_one_line
from flnl.core.numbers import is_number
from flnl.run.interrupt import Interruption
from flnl.sweep.ledger import Job, Ledger

if TYPE_CHECKING:
    from flnl.run.session import Session

LOG, ERROR_LOG = "job.log", "error.log"
ORPHAN_SECONDS = 1.0
OUT_OF_TIME = signal.SIGUSR2
"""The signal that submitit sends shortly before a job's time limit."""


def task(cfg: DictConfig) -> float:
    """The function that launchers run for each job. Worker processes import it by name."""
    chosen: Any = HydraConfig.get()
    return run(cfg, typed(chosen), chosen)


def typed(chosen: DictConfig) -> list[str]:
    """The overrides as typed; normal access would resolve ``${...}``."""
    overrides = chosen.overrides.task
    return [str(overrides._get_node(i)) for i in range(len(overrides))]


def run(cfg: DictConfig, overrides: Sequence[str], chosen: DictConfig) -> float:
    """Run a job.

    If jobs share a process, a signal ends the sweep. If each job has a process, a signal ends that job, and its output
    goes to ``job.log`` in its folder.

    Args:
        cfg: the job's configuration.
        overrides: its overrides as typed.
        chosen: Hydra's configuration of the job.

    Returns:
        The job's score, which an optimising sweeper would maximise; NaN if there is none.

    Raises:
        Interrupted: after a signal, if jobs share a process.
    """
    ledger = Ledger(Path(chosen.runtime.cwd, chosen.sweep.dir))  # also with hydra.job.chdir=true
    folder = Path(chosen.runtime.output_dir)
    if ledger.stopping:
        return math.nan
    number = int(chosen.job.num)
    job = Job(
        number, overrides, "running", str(folder), started=time.time(), host=socket.gethostname(), pid=os.getpid()
    )
    if not shares_a_process(chosen):
        with _output_to(folder / LOG), _asked_to_stop(ledger) as stop:
            job = _accounted(cfg, job, ledger, stop)
        if stop.number == OUT_OF_TIME and job.status == "interrupted":
            os.kill(os.getpid(), OUT_OF_TIME)  # the state is saved; the scheduler's handler requeues the job
        return score(job)
    print(file=sys.stderr)
    print_line(f"job {number} in {folder}", to=sys.stderr)
    with contextlib.ExitStack() as training:
        stop = Interruption()
        job = _accounted(cfg, job, ledger, stop, lambda: training.enter_context(stop))
    if job.status == "interrupted" or stop.number is not None:
        raise Interrupted(stop.number or signal.Signals[job.error or "SIGINT"])
    if job.error:
        print_line(f"job {number} {job.status}: {job.error}", to=sys.stderr)
    return score(job)


def shares_a_process(chosen: DictConfig) -> bool:
    """Whether jobs run one after the other in the main process."""
    return str(chosen.launcher._target_).endswith(".BasicLauncher")


def score(job: Job) -> float:
    """What a sweeper that optimises is told of a job: the mean of its last ten accuracies; NaN if it has none."""
    accuracy = job.metrics.get("mean_last_10")
    return math.nan if accuracy is None else accuracy


def _accounted(
    cfg: DictConfig, job: Job, ledger: Ledger, stop: Interruption, training: Callable[[], object] | None = None
) -> Job:
    """Run a job, and record its state before it, at its first round, and after it.

    Args:
        cfg: its configuration.
        job: its state now.
        ledger: where it is recorded.
        stop: what notices signals.
        training: called before the first round if the job shares a process, where ``stop`` is not yet active.
    """
    assert job.folder is not None
    folder, session = Path(job.folder), None

    def opened(run: Session) -> None:
        nonlocal job, session
        session, job = run, replace(job, folder=str(run.folder.path), rounds=run.rounds)
        if training is not None:
            training()
        ledger.write(job)

    ledger.write(job)
    try:
        if ledger.stopping:  # since it was asked for the first time: the signal found no running job
            raise Interrupted(ledger.stopped_by or signal.SIGTERM)
        from flnl.run.train import train

        outcome = train(cfg, job.overrides, folder, opened=opened, stop=stop)
        metrics = {k: v for k, v in outcome.record.metrics.items() if is_number(v)}
        job = replace(job, status=outcome.status, folder=str(outcome.folder), metrics=metrics)
        if outcome.signal is not None and outcome.status == "interrupted":
            by = ledger.stopped_by or outcome.signal  # the sweep passes any signal on to its jobs as SIGTERM
            job = replace(job, error=signal.Signals(by).name)
    except (Interrupted, KeyboardInterrupt) as stopped:
        job = replace(job, status="interrupted", error=str(stopped) or "SIGINT")
    except UserError as error:
        job = replace(job, status="refused", error=str(error))
    except Exception as error:
        trace = traceback.format_exc()
        if training is None:
            print(redacted(trace), file=sys.stderr, flush=True)  # goes to the job's log
        with contextlib.suppress(OSError):
            place = Path(job.folder or folder)
            place.mkdir(parents=True, exist_ok=True)  # a run that could not be opened leaves no folder
            (place / ERROR_LOG).write_text(redacted(trace), errors="backslashreplace")
        job = replace(job, status="failed", error=in_one_line(error))
    if session is not None:
        job = replace(job, unsynchronised=session.unsynchronised)
    job = replace(job, seconds=round(time.time() - (job.started or 0.0), 3))
    ledger.write(job)
    return job


@contextlib.contextmanager
def _output_to(log: Path) -> Iterator[None]:
    """Redirect this process's output, including that of C code, to ``log``, so that outputs of jobs do not mix."""
    log.parent.mkdir(parents=True, exist_ok=True)
    kept = [os.dup(number) for number in (1, 2)]
    try:
        with log.open("ab") as file:
            sys.stdout.flush()
            sys.stderr.flush()
            for number in (1, 2):
                os.dup2(file.fileno(), number)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in zip((1, 2), kept, strict=True):
            os.dup2(descriptor, number)
            os.close(descriptor)


class _Worker:
    """What a process that runs one job after the other knows of itself."""

    parent: int | None = None  # the process that gives it jobs; None in a process that runs a single job
    busy = False  # a job runs, which saves and ends by itself once its parent is gone


def end_with(parent: int) -> None:
    """End this process, a new worker, once ``parent`` is gone and no job runs: nobody would give it another.

    Workers of a pool hold both ends of the queue of their jobs, so none of them sees it close.
    """
    _Worker.parent = parent

    def watch() -> None:
        while os.getppid() == parent or _Worker.busy:
            time.sleep(ORPHAN_SECONDS)
        os._exit(128 + signal.SIGTERM)

    threading.Thread(target=watch, daemon=True).start()


@contextlib.contextmanager
def _asked_to_stop(ledger: Ledger) -> Iterator[Interruption]:
    """Let SIGTERM, a scheduler's time limit, or the end of the sweep's main process ask the job to stop.

    SIGINT is ignored: Ctrl-C in a terminal reaches all processes, and the main process passes it on to the jobs.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    over, orphaned = threading.Event(), threading.Event()
    parent, pid = _Worker.parent or os.getppid(), os.getpid()

    def watch() -> None:
        while os.getppid() == parent:
            if over.wait(ORPHAN_SECONDS):
                return
        orphaned.set()
        ledger.stop()
        os.kill(pid, signal.SIGTERM)

    scheduled = callable(signal.getsignal(OUT_OF_TIME))
    with Interruption((signal.SIGTERM, OUT_OF_TIME) if scheduled else (signal.SIGTERM,)) as stop:
        threading.Thread(target=watch, daemon=True).start()
        _Worker.busy = True
        try:
            yield stop
        finally:
            over.set()
            _Worker.busy = False
    if orphaned.is_set():
        os._exit(128 + signal.SIGTERM)  # otherwise a pool's worker would wait for work forever
