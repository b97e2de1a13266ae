"""Runs one experiment from a composed configuration; a plain function for commands, sweeps, notebooks and tests."""

from __future__ import annotations

import logging
import shutil
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from omegaconf import DictConfig

from flnl.config.check import check_config, check_machine, check_read
from flnl.config.quoting import quoted
from flnl.config.short_keys import connect
from flnl.console.shell import joined
from flnl.console.terminal import print_line
from flnl.core.errors import in_users_code
from flnl.record.run import RESULT, RunRecord
from flnl.run import opening, progress
from flnl.run.apart import AwayError
from flnl.run.interrupt import InterruptedWaiting, Interruption
from flnl.run.overrides import replaced
from flnl.run.reuse import check_data
from flnl.run.session import Session

log = logging.getLogger(__name__)

LESS_MEMORY = (
    "smaller stacks take less of the GPU's memory: go on with resume=true executor=stacked executor.stack=5, or "
    "executor=sequential"
)

Status = Literal["finished", "stopped", "interrupted"]
"""How a run ended; "stopped" means at ``max_rounds``."""


@dataclass(frozen=True)
class Outcome:
    """The outcome of a run."""

    status: Status
    folder: Path
    record: RunRecord
    signal: int | None = None  # one that arrived while it trained or ended, also if it has finished nevertheless


def train(
    cfg: DictConfig,
    overrides: Sequence[str] = (),
    job: Path | None = None,
    *,
    typed: Sequence[str] | None = None,
    opened: Callable[[Session], object] = lambda run: None,
    stop: Interruption | None = None,
) -> Outcome:
    """Run the experiment ``cfg``, or resume it.

    Args:
        cfg: the composed configuration: ``conf/config.yaml`` with overrides.
        overrides: the overrides as typed.
        job: folder that a sweep assigns to this job; the sweep then prints how to resume.
        typed: all arguments of the command, with options and Hydra's own overrides, to print the command that resumes
            the run; None if they are ``overrides``.
        opened: called with the session before its first round.
        stop: an interruption that is active from the first round on; None to handle signals here.

    Raises:
        UserError: for errors that the user can fix.
        NonFiniteError: if every local training of the run diverged.
    """
    connect(cfg, overrides)
    check_config(cfg)
    check_machine(cfg)
    if job is None:  # one protocol may serve all methods of a sweep
        check_read(cfg, overrides)
    claimed = opening.claim(cfg, overrides, job)
    with claimed.folder:
        if claimed.folder.finished:
            assert claimed.folder.earlier is not None
            earlier = claimed.folder.earlier
            check_data(cfg, earlier)
            if (damage := earlier.damage()) is not None:
                log.warning("%s; the numbers below are those of %s", damage, RESULT)
            progress.closing("finished earlier", claimed.folder.path, earlier)
            return Outcome("finished", claimed.folder.path, earlier)
        run = opening.open_session(cfg, overrides, claimed)
        with run, Interruption() if stop is None else nullcontext(stop) as stop:
            opened(run)
            try:
                with progress.Bar(run.epochs, run.state.round) as bar, _kept_if_waiting(run):
                    for result in run.results() if stop.number is None else ():
                        run.log(result)
                        bar.round(result)
                        leave = run.enough or stop.number is not None
                        run.keep(now=leave)
                        if leave:
                            break
                        if run.ends_stage(result):
                            run.demand_training()
                status: Status
                status = "finished" if run.over else "stopped" if run.enough else "interrupted"
                if status == "finished":
                    run.demand_training()
                try:
                    record = run.close(status)
                except InterruptedWaiting:  # while others were told of the end
                    status = "interrupted"
                    record = run.close(status)
            except Exception as error:
                if isinstance(error, AwayError):
                    run.keep(now=True)
                run.fail(error, traceback.format_exc())
                error.add_note(_where(error, run))
                raise
            finally:
                if job is None and run.unsynchronised:
                    print_line(f"to upload the metrics: wandb sync {run.unsynchronised}", to=sys.stderr)
        progress.closing(status, run.folder.path, record)
        if status != "finished" and job is None:
            again = _again(overrides if typed is None else typed, run.folder.path)
            print_line(f"to go on: {command(again)}", to=sys.stderr)
        return Outcome(status, run.folder.path, record, stop.number)


@contextmanager
def _kept_if_waiting(run: Session) -> Iterator[None]:
    """Leave the rounds, with a checkpoint, if a signal comes while others are awaited."""
    try:
        yield
    except InterruptedWaiting:
        run.keep(now=True)


def _where(error: Exception, run: Session) -> str:
    """In which round, by which line of the user's own code, where the traceback is, and what takes less memory."""
    when = "after the last round" if run.over else f"in round {run.state.round + 1}"
    line, advice = in_users_code(error), f"; {LESS_MEMORY}" if isinstance(error, torch.OutOfMemoryError) else ""
    return f"{when}{f', {line}' if line else ''}; {run.folder.path / 'error.log'} has the traceback{advice}"


def _again(arguments: Sequence[str], folder: Path) -> list[str]:
    """The arguments that resume the run: the same ones, except those that concern only this start."""
    return replaced(arguments, ("resume", "output", "max_rounds"), f"resume={quoted(str(folder))}")


def command(arguments: Sequence[str]) -> str:
    """The command line with these arguments that starts the same program as this process."""
    started = Path(sys.argv[0])
    if started.name == "flnl":
        on_path = shutil.which("flnl")
        return joined(
            ["flnl" if on_path and Path(on_path).resolve() == started.resolve() else str(started), *arguments]
        )
    python = "python" if shutil.which("python") == sys.executable else sys.executable
    return joined([python, "-m", "src.main" if started.parts[-2:] == ("src", "main.py") else "flnl", *arguments])
