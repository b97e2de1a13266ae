"""Runs of tables through one of Hydra's launchers: a sweep whose jobs are a list, since no axes span them.

Each job's folder is named by its run's key, so a job that was killed goes on there when the tables are run again.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from hydra._internal.callbacks import Callbacks
from hydra._internal.hydra import Hydra
from hydra._internal.utils import create_config_search_path
from hydra.core.global_hydra import GlobalHydra
from hydra.core.plugins import Plugins
from hydra.errors import HydraException
from hydra.types import HydraContext, RunMode
from hydra.version import setbase
from omegaconf import DictConfig

from flnl.cli import explain, overrides
from flnl.config import compose, resolvers
from flnl.config.check import check_config
from flnl.config.identity import NOT_OF_THE_KEY
from flnl.core.errors import UserError
from flnl.core.terminal import print_line
from flnl.sweep import job, workers
from flnl.sweep.ledger import DONE, Job, Ledger
from flnl.sweep.supervisor import Sweep
from flnl.tables.failed_jobs import remember
from flnl.tables.plan import Plan, Wanted

LAUNCHER = "hydra/launcher"


class Listed(Sweep):
    """A sweep over the runs of tables, each called by the first cell that needs it."""

    in_use = "another command runs tables in {folder}; wait for its end, or take another scale"

    def __init__(self, config: DictConfig, runs: Sequence[Wanted], jobs: Sequence[Sequence[str]]) -> None:
        self._called = {number: _called(run) for number, run in enumerate(runs)}
        super().__init__(config, jobs)

    def labels(self, jobs: Sequence[Job]) -> dict[int, str]:
        """What each job is called."""
        return self._called

    def tell(self, jobs: Sequence[Job]) -> None:
        """Name the jobs that failed and say how to go on."""
        for found in jobs:
            if found.status in ("failed", "refused"):
                called = self._called[found.number]
                print_line(f"{found.status}: {called}: {found.error}; {found.folder}", to=sys.stderr)
        if any(found.status not in (*DONE, "failed", "refused") for found in jobs):
            again = shlex.join(["flnl", "tables", *sys.argv[1:]])
            print_line(f"to go on: {again}", to=sys.stderr)


def _called(run: Wanted) -> str:
    others = len(run.cells) - 1
    return f"{run.cells[0]}{f' and {others} more' if others else ''}"


def check(plan: Plan, words: Sequence[str]) -> None:
    """Refuse words on how runs are launched before any is, by what they make of the first one.

    Args:
        plan: the tables.
        words: overrides of the launcher, and of what does not make a run another one (``executor=ray``).

    Raises:
        UserError: for a word that is wrong, or that would make other runs than the tables'.
    """
    overrides.check_words(words)
    ours, theirs = _parted(words)
    run = next(iter(plan.runs.values()), None)
    try:
        composed = compose.load([*ours, *(theirs if run is None else _joined(run, theirs))])
    except HydraException as error:
        raise UserError(explain.explain(error, words)) from None
    for word in theirs:
        if not _changes_no_key(word):
            raise UserError(
                f"{word} would make other runs than the table's: say it in a table of your own, conf/table/"
            )
    check_config(composed)


def _parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Words about Hydra, a launcher among them, and words about runs."""
    ours = [word for word in words if word.lstrip("+~").startswith("hydra")]
    theirs = [word for word in words if word not in ours]
    if not any(word.startswith(f"{LAUNCHER}=") for word in ours):
        ours.insert(0, f"{LAUNCHER}=joblib")
    return ours, theirs


def _joined(run: Wanted, words: Sequence[str]) -> list[str]:
    """The words of a run with ``words`` instead of what it says of the same keys."""
    said = {word.split("=")[0] for word in words}
    return [*(word for word in run.words if word.split("=")[0] not in said), *words]


def launch(plan: Plan, words: Sequence[str]) -> bool:
    """Run what is missing; gives whether the launcher came to its end, whatever became of the runs.

    Args:
        plan: the tables.
        words: as ``check`` lets them through.

    Raises:
        Interrupted: after a signal.
    """
    ours, theirs = _parted(words)
    runs = plan.missing
    if not runs:
        return True
    setbase("1.3")
    GlobalHydra.instance().clear()
    hydra = Hydra.create_main_hydra2("tables", create_config_search_path(str(resolvers.CONF)))
    try:
        composed = hydra.compose_config(
            "config",
            [*ours, f"hydra.sweep.dir={plan.folder}"],
            run_mode=RunMode.MULTIRUN,
            with_log_configuration=False,
        )
        workers.install()
        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(composed))
        launcher: Any = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=job.task, config=composed
        )
        lists = [_joined(run, theirs) for run in runs]
        remember(plan.folder, [run.identity.folder for run in runs])
        sweep = Listed(composed, runs, lists)
        failure: BaseException | None = None
        try:
            _let_go([plan.at(run) for run in runs])
            Ledger(plan.folder).go()
            jobs = zip(runs, lists, strict=True)
            # quoted, or 1e5... were a number
            launcher.launch([[*own, f"hydra.sweep.subdir='{run.identity.folder}'"] for run, own in jobs], 0)
        except BaseException as error:
            failure = error
        with suppress(SystemExit):  # failed jobs are failed cells, which the caller counts
            sweep.end(failure)
        return failure is None
    finally:
        GlobalHydra.instance().clear()


def _let_go(folders: Sequence[Path]) -> None:
    """Wait for runs that a killed command's workers have not put down yet: they do at the end of their round."""
    for folder in folders:
        lock = FileLock(folder / ".lock", timeout=0)
        if not (folder / ".lock").exists():
            continue
        try:
            lock.acquire()
        except Timeout:
            print_line(f"waiting for {folder}, where another process ends its round", to=sys.stderr)
            lock.acquire(timeout=-1)
        lock.release()


def _changes_no_key(word: str) -> bool:
    key = word.lstrip("+~").split("=")[0]
    return any(key == out or key.startswith(f"{out}.") for out in NOT_OF_THE_KEY) and key.split(".")[0] not in (
        "protocol",
        "output",
        "resume",
        "max_rounds",
    )
