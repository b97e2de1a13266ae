"""A sweep over a list of runs that no axes span, through one of Hydra's launchers.

Each run's folder is named by its key, so that a run that was killed goes on there when the list is launched again.
"""

from __future__ import annotations

import shlex
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
from hydra.types import HydraContext, RunMode
from hydra.version import setbase
from omegaconf import DictConfig

from flnl.config import resolvers
from flnl.config.identity import NOT_OF_THE_KEY
from flnl.core.terminal import print_line
from flnl.sweep import job, workers
from flnl.sweep.ledger import DONE, Job, Ledger
from flnl.sweep.supervisor import Sweep

LAUNCHER = "hydra/launcher"


@dataclass(frozen=True)
class ListedRun:
    """A run of the list."""

    label: str  # shown while it runs, and if it fails
    folder: str  # its folder's name: the first digits of its key
    overrides: Sequence[str]


class ListedSweep(Sweep):
    """A sweep over listed runs, each under its label."""

    in_use = "another command works in {folder}; wait for its end, or choose another folder"

    def __init__(self, config: DictConfig, runs: Sequence[ListedRun]) -> None:
        self._labels = {number: run.label for number, run in enumerate(runs)}
        super().__init__(config, [run.overrides for run in runs])

    def labels(self, jobs: Sequence[Job]) -> dict[int, str]:
        """The label of each job."""
        return self._labels

    def tell(self, jobs: Sequence[Job]) -> None:
        """Name the jobs that failed and say how to go on."""
        for each in jobs:
            if each.status in ("failed", "refused"):
                line = f"{each.status}: {self._labels[each.number]}: {each.error}; {each.folder}"
                print_line(line, to=sys.stderr)
        if any(each.status not in (*DONE, "failed", "refused") for each in jobs):
            print_line(f"to go on: {shlex.join([*self.command, *sys.argv[1:]])}", to=sys.stderr)

    command: Sequence[str] = ("flnl",)
    """The first words of the command that launches the list again."""


def parted(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Launch words in two: those about Hydra, with a launcher among them, and those about the runs."""
    about_hydra = [word for word in words if word.lstrip("+~").startswith("hydra")]
    about_runs = [word for word in words if word not in about_hydra]
    if not any(word.startswith(f"{LAUNCHER}=") for word in about_hydra):
        about_hydra.insert(0, f"{LAUNCHER}=joblib")
    return about_hydra, about_runs


def joined(overrides: Sequence[str], more: Sequence[str]) -> list[str]:
    """``overrides`` with those of ``more`` in the place of what they say of the same keys."""
    keys = {word.split("=")[0] for word in more}
    return [*(word for word in overrides if word.split("=")[0] not in keys), *more]


def changes_no_key(word: str) -> bool:
    """Whether an override leaves a run the same run, as ``executor=ray`` and ``device=cpu`` do."""
    key = word.lstrip("+~").split("=")[0]
    return any(key == out or key.startswith(f"{out}.") for out in NOT_OF_THE_KEY) and key.split(".")[0] not in (
        "protocol",
        "output",
        "resume",
        "max_rounds",
    )


def launch(
    runs: Sequence[ListedRun], root: Path, words: Sequence[str], sweep_type: type[ListedSweep] = ListedSweep
) -> bool:
    """Run the list; gives whether the launcher came to its end, whatever became of the runs.

    Args:
        runs: what to run.
        root: the folder of their folders.
        words: overrides of the launcher, and of what leaves a run the same run.
        sweep_type: the account to keep.

    Raises:
        Interrupted: after a signal.
    """
    about_hydra, about_runs = parted(words)
    if not runs:
        return True
    setbase("1.3")
    GlobalHydra.instance().clear()
    hydra = Hydra.create_main_hydra2("listed", create_config_search_path(str(resolvers.CONF)))
    try:
        composed = hydra.compose_config(
            "config",
            [*about_hydra, f"hydra.sweep.dir={root}"],
            run_mode=RunMode.MULTIRUN,
            with_log_configuration=False,
        )
        workers.install()
        context = HydraContext(config_loader=hydra.config_loader, callbacks=Callbacks(composed))
        launcher: Any = Plugins.instance().instantiate_launcher(
            hydra_context=context, task_function=job.task, config=composed
        )
        listed = [ListedRun(run.label, run.folder, joined(run.overrides, about_runs)) for run in runs]
        sweep = sweep_type(composed, listed)
        failure: BaseException | None = None
        try:
            _wait_for_locks([root / run.folder for run in runs])
            Ledger(root).go()
            # quoted, or 1e5... were a number
            launcher.launch([[*run.overrides, f"hydra.sweep.subdir='{run.folder}'"] for run in listed], 0)
        except BaseException as error:
            failure = error
        with suppress(SystemExit):  # the caller counts failed jobs
            sweep.end(failure)
        return failure is None
    finally:
        GlobalHydra.instance().clear()


def _wait_for_locks(folders: Sequence[Path]) -> None:
    """Wait for runs that a killed command's workers still hold: they let go at the end of their round."""
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
