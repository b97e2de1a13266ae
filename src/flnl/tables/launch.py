"""Launch the runs of tables through one of Hydra's launchers, as a sweep over an explicit list of jobs.

Each job's folder is named after its run's key, so a killed job continues there when the tables are run again.
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


class TableSweep(Sweep):
    """A sweep over the runs of tables, each labelled by the first cell that needs it."""

    in_use = "another command runs tables in {folder}; wait for its end, or take another scale"

    def __init__(self, config: DictConfig, runs: Sequence[Wanted], jobs: Sequence[Sequence[str]]) -> None:
        self._labels = {number: _label(run) for number, run in enumerate(runs)}
        super().__init__(config, jobs)

    def labels(self, jobs: Sequence[Job]) -> dict[int, str]:
        """The label of each job, by its number."""
        return self._labels

    def tell(self, jobs: Sequence[Job]) -> None:
        """Print the jobs that failed, and the command that continues unfinished ones."""
        for one in jobs:
            if one.status in ("failed", "refused"):
                print_line(f"{one.status}: {self._labels[one.number]}: {one.error}; {one.folder}", to=sys.stderr)
        if any(one.status not in (*DONE, "failed", "refused") for one in jobs):
            again = shlex.join(["flnl", "tables", *sys.argv[1:]])
            print_line(f"to go on: {again}", to=sys.stderr)


def _label(run: Wanted) -> str:
    others = len(run.cells) - 1
    return f"{run.cells[0]}{f' and {others} more' if others else ''}"


def check(plan: Plan, arguments: Sequence[str]) -> None:
    """Check the overrides of how runs are launched before launching any, on the configuration of the first run.

    Args:
        plan: the tables.
        arguments: overrides of the launcher, and of keys that are not part of a run's key (``executor=ray``).

    Raises:
        UserError: for an invalid override, or one that would change the keys of the runs.
    """
    overrides.check_arguments(arguments)
    of_hydra, of_run = _split(arguments)
    run = next(iter(plan.runs.values()), None)
    try:
        composed = compose.load([*of_hydra, *(of_run if run is None else _merged(run, of_run))])
    except HydraException as error:
        raise UserError(explain.explain(error, arguments)) from None
    for override in of_run:
        if not _keeps_key(override):
            raise UserError(
                f"{override} would make other runs than the table's: write it into a table of your own, conf/table/"
            )
    check_config(composed)


def _split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides of Hydra's configuration, with a launcher among them, and overrides of runs."""
    of_hydra = [one for one in arguments if one.lstrip("+~").startswith("hydra")]
    of_run = [one for one in arguments if one not in of_hydra]
    if not any(one.startswith(f"{LAUNCHER}=") for one in of_hydra):
        of_hydra.insert(0, f"{LAUNCHER}=joblib")
    return of_hydra, of_run


def _merged(run: Wanted, of_run: Sequence[str]) -> list[str]:
    """The overrides of ``run``, those of the same keys replaced by ``of_run``."""
    replaced = {override.split("=")[0] for override in of_run}
    return [*(override for override in run.overrides if override.split("=")[0] not in replaced), *of_run]


def launch(plan: Plan, arguments: Sequence[str]) -> bool:
    """Run what is missing.

    Args:
        plan: the tables.
        arguments: overrides that have passed ``check``.

    Returns:
        Whether the launcher completed, whether or not runs failed.

    Raises:
        Interrupted: after a signal.
    """
    of_hydra, of_run = _split(arguments)
    runs = plan.missing
    if not runs:
        return True
    setbase("1.3")
    GlobalHydra.instance().clear()
    hydra = Hydra.create_main_hydra2("tables", create_config_search_path(str(resolvers.CONF)))
    try:
        composed = hydra.compose_config(
            "config",
            [*of_hydra, f"hydra.sweep.dir={plan.folder}"],
            run_mode=RunMode.MULTIRUN,
            with_log_configuration=False,
        )
        workers.install()
        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(composed))
        launcher: Any = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=job.task, config=composed
        )
        lists = [_merged(run, of_run) for run in runs]
        remember(plan.folder, [run.identity.folder for run in runs])
        sweep = TableSweep(composed, runs, lists)
        failure: BaseException | None = None
        try:
            _wait_for([plan.at(run) for run in runs])
            Ledger(plan.folder).go()
            jobs = zip(runs, lists, strict=True)
            # quoted, or Hydra would parse a name such as 1e5... as a number
            launcher.launch(
                [[*job_overrides, f"hydra.sweep.subdir='{run.identity.folder}'"] for run, job_overrides in jobs], 0
            )
        except BaseException as error:
            failure = error
        with suppress(SystemExit):  # failed jobs become failed cells, which the caller counts
            sweep.end(failure)
        return failure is None
    finally:
        GlobalHydra.instance().clear()


def _wait_for(folders: Sequence[Path]) -> None:
    """Wait until no other process holds a run: workers of a killed command stop at the end of their round."""
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


def _keeps_key(override: str) -> bool:
    key = override.lstrip("+~").split("=")[0]
    return any(key == out or key.startswith(f"{out}.") for out in NOT_OF_THE_KEY) and key.split(".")[0] not in (
        "protocol",
        "output",
        "resume",
        "max_rounds",
    )
