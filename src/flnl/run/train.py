"""One run from a composed configuration to its end, as an ordinary function for tests, notebooks and sweeps to call."""

from __future__ import annotations

import logging
import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from omegaconf import DictConfig

from flnl.config.check import check_config, check_machine, check_read
from flnl.config.short_keys import connect
from flnl.core.terminal import print_line
from flnl.run import opening, progress
from flnl.run.interrupt import Interruption
from flnl.run.session import Session
from flnl.storage import lines
from flnl.storage.records import RESULT

log = logging.getLogger(__name__)

Status = Literal["finished", "stopped", "interrupted"]
"""How a run left off; stopped: at ``max_rounds``."""


@dataclass(frozen=True)
class Outcome:
    """What came of a run."""

    status: Status
    folder: Path
    record: Mapping[str, Any]  # its result.json
    signal: int | None = None  # that interrupted it


def train(
    cfg: DictConfig,
    words: Sequence[str] = (),
    job: Path | None = None,
    *,
    opened: Callable[[Session], object] = lambda run: None,
    stop: Interruption | None = None,
) -> Outcome:
    """Run what ``cfg`` says, or go on with it.

    Args:
        cfg: ``conf/config.yaml`` with overrides, composed.
        words: the overrides as typed, to print the command that goes on with the run.
        job: the folder that a sweep gives to this job; the sweep then says how to go on.
        opened: told of the run before its first round.
        stop: an interruption that is being listened for already.

    Raises:
        UserError: for what the user can mend.
        NonFiniteError: if every local training of the run diverged.
    """
    connect(cfg, words)
    check_config(cfg)
    check_machine(cfg)
    if job is None:  # one protocol may serve all methods of a sweep
        check_read(cfg, words)
    claimed = opening.claim(cfg, words, job)
    if claimed.folder.finished:
        assert claimed.folder.earlier is not None
        claimed.folder.lock.release()
        earlier = claimed.folder.earlier
        if (wrong := lines.damage(claimed.folder.path, earlier)) is not None:
            log.warning("%s; the numbers below are of %s, which was written with them", wrong, RESULT)
        progress.closing(f"finished earlier: {claimed.folder.path}", {**earlier, **earlier.get("metrics", {})})
        return Outcome("finished", claimed.folder.path, earlier)
    run = opening.open_session(cfg, words, claimed)
    with run, Interruption() if stop is None else nullcontext(stop) as stop:
        opened(run)
        try:
            with progress.Bar(run.rounds, run.state.round) as bar:
                for result in run.results():
                    run.log(result)
                    bar.round(result)
                    leave = run.enough or stop.number is not None
                    run.keep(now=leave)
                    if leave:
                        break
            status: Status
            status = "finished" if run.over else "stopped" if run.enough else "interrupted"
            if status == "finished":
                run.demand_training()
            record = run.close(status)
        except Exception as error:
            run.fail(error, traceback.format_exc())
            raise
        finally:
            if job is None and run.unsynchronised:
                print_line(f"wandb sync {run.unsynchronised}", to=sys.stderr)
    progress.closing(f"{status}: {run.folder.path}", {**record, **record["metrics"]})
    if status != "finished" and job is None:
        print_line(f"to go on: {command(_again(words, run.folder.path))}", to=sys.stderr)
    return Outcome(status, run.folder.path, record, stop.number if status == "interrupted" else None)


def _again(words: Sequence[str], folder: Path) -> list[str]:
    """The words that resume: the same overrides, without what was only said of this start."""
    kept = without(words, "resume", "output", "max_rounds")
    path = str(folder)
    if not re.fullmatch(r"[\w./-]+", path):  # Hydra's grammar would read commas and brackets
        path = "'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'"
    return [*kept, f"resume={path}"]


def without(words: Sequence[str], *keys: str) -> list[str]:
    """The words that do not set one of these keys.

    >>> without(["seed=1", "+resume=true"], "resume")
    ['seed=1']
    """
    return [w for w in words if w.split("=")[0].lstrip("+") not in keys]


def command(words: Sequence[str]) -> str:
    """The command line that starts a run with these words, as this process was started."""
    started = Path(sys.argv[0])
    if started.name == "flnl":
        on_path = shutil.which("flnl")
        return shlex.join(
            ["flnl" if on_path and Path(on_path).resolve() == started.resolve() else str(started), *words]
        )
    python = "python" if shutil.which("python") == sys.executable else sys.executable
    return shlex.join([python, "-m", "src.main" if started.parts[-2:] == ("src", "main.py") else "flnl", *words])
