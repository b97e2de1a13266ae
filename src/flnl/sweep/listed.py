"""A sweep over a list of runs that no axes span, through one of Hydra's launchers.

Each run's folder is named by its key, and by where its data lie if these may be others elsewhere; so a run that was
killed continues there when the list is launched again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
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

from flnl.config import compose, explain
from flnl.config.check import check_config
from flnl.config.folders import CONF
from flnl.config.identity import outside
from flnl.config.override_text import dotted, key_of, without
from flnl.console.shell import joined
from flnl.console.terminal import print_line
from flnl.core.errors import UserError
from flnl.record.run import LOCK
from flnl.run import overrides
from flnl.sweep import job, launchers
from flnl.sweep.ledger import DONE, Job, Ledger
from flnl.sweep.supervisor import Sweep

LAUNCHER = "hydra/launcher"


@dataclass(frozen=True)
class ListedRun:
    """A run of the list."""

    label: str  # shown while it runs, and if it fails
    folder: str  # the name of its folder
    overrides: Sequence[str]


class ListedSweep(Sweep):
    """A sweep over listed runs, each under its label."""

    in_use = "another command runs in {folder}; wait for its end"

    def __init__(self, config: DictConfig, runs: Sequence[ListedRun], command: Sequence[str]) -> None:
        """``command``: the words that launch the list again."""
        self.runs, self._command = runs, command
        self._labels = {number: run.label for number, run in enumerate(runs)}
        super().__init__(config, [run.overrides for run in runs])

    def labels(self, jobs: Sequence[Job]) -> dict[int, str]:
        """The label of each job, by its number."""
        return self._labels

    def tell(self, jobs: Sequence[Job]) -> None:
        """Print the jobs that failed, and the command that continues unfinished ones."""
        for one in jobs:
            if one.status in ("failed", "refused"):
                print_line(f"{one.status}: {self._labels[one.number]}: {one.error}; {one.folder}", to=sys.stderr)
        if any(one.status not in (*DONE, "failed", "refused") for one in jobs):
            print_line(f"to go on: {joined(self._command)}", to=sys.stderr)


def check(first: Sequence[str] | None, arguments: Sequence[str], instead: str) -> None:
    """Check the overrides of how runs are launched before launching any, on the configuration of the first run.

    Args:
        first: the first run's overrides; None if there is no run.
        arguments: overrides of the launcher, and of keys that are not part of a run's key (``executor=ray``).
        instead: what to do with an override that would change the keys of the runs, for the message.

    Raises:
        UserError: for an invalid override, or one that would change the keys of the runs.
    """
    overrides.check_arguments(arguments)
    of_hydra, of_run = split(arguments)
    try:
        composed = compose.load([*of_hydra, *merged(first or (), of_run)])
    except HydraException as error:
        raise UserError(explain.explain(error, arguments)) from None
    for override in of_run:
        if not keeps_key(override):
            raise UserError(f"{override} would make other runs: {instead}")
    check_config(composed)


def split(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Overrides of Hydra's configuration, with a launcher among them, and overrides of runs."""
    of_hydra = [one for one in arguments if one.lstrip("+~").startswith("hydra")]
    of_run = [one for one in arguments if one not in of_hydra]
    if not any(one.startswith(f"{LAUNCHER}=") for one in of_hydra):
        of_hydra.insert(0, f"{LAUNCHER}=joblib")
    return of_hydra, of_run


def merged(of_one: Sequence[str], of_all: Sequence[str]) -> list[str]:
    """The overrides of one run, those of the same keys replaced by those of all runs."""
    return [*without(of_one, *map(key_of, of_all)), *of_all]


def launch(
    runs: Sequence[ListedRun],
    root: Path,
    arguments: Sequence[str],
    command: Sequence[str],
    sweep_type: type[ListedSweep] = ListedSweep,
) -> bool:
    """Launch the runs of a list.

    Args:
        runs: those to run.
        root: the folder of their folders.
        arguments: overrides that have passed ``check``.
        command: the words that launch the list again, which the user is told if it is stopped.
        sweep_type: how the sweep reports.

    Returns:
        Whether the launcher completed, whether or not runs failed.

    Raises:
        Interrupted: after a signal.
    """
    of_hydra, of_all = split(arguments)
    if not runs:
        return True
    setbase("1.3")
    GlobalHydra.instance().clear()
    hydra = Hydra.create_main_hydra2("listed", create_config_search_path(str(CONF)))
    try:
        composed = hydra.compose_config(
            "config", [*of_hydra, f"hydra.sweep.dir={root}"], run_mode=RunMode.MULTIRUN, with_log_configuration=False
        )
        launchers.install(str(composed.hydra.launcher._target_))
        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(composed))
        launcher: Any = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=job.task, config=composed
        )
        jobs = [ListedRun(run.label, run.folder, merged(run.overrides, of_all)) for run in runs]
        sweep = sweep_type(composed, jobs, command)
        failure: BaseException | None = None
        try:
            _wait_for([root / run.folder for run in runs])
            Ledger(root).go()
            # quoted, or Hydra would parse a name such as 1e5... as a number
            launcher.launch([[*run.overrides, f"hydra.sweep.subdir='{run.folder}'"] for run in jobs], 0)
        except BaseException as error:
            failure = error
        with suppress(SystemExit):  # the caller counts failed jobs
            sweep.end(failure)
        return failure is None
    finally:
        GlobalHydra.instance().clear()


def _wait_for(folders: Sequence[Path]) -> None:
    """Wait until no other process holds a run: workers of a killed command stop at the end of their round."""
    for folder in folders:
        lock = FileLock(folder / LOCK, timeout=0)
        if not (folder / LOCK).exists():
            continue
        try:
            lock.acquire()
        except Timeout:
            print_line(f"waiting for {folder}, where another process ends its round", to=sys.stderr)
            lock.acquire(timeout=-1)
        lock.release()


def keeps_key(override: str) -> bool:
    """Whether a run with the override as well has the same key and is whole."""
    key = dotted(override)
    return outside(key) and key.split(".")[0] not in ("protocol", "output", "resume", "max_rounds")
