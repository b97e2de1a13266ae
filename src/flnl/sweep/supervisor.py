"""The sweep in the main process: it checks all jobs before the first one starts, and summarises them at the end."""

from __future__ import annotations

import copy
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from filelock import FileLock, Timeout
from hydra._internal.core_plugins.basic_sweeper import BasicSweeper
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from hydra.experimental.callback import Callback
from omegaconf import DictConfig, open_dict, read_write
from omegaconf.errors import OmegaConfBaseException

from flnl.config import explain
from flnl.config.check import check_config, check_machine
from flnl.config.override_text import choices_of, dotted, key_of
from flnl.config.short_keys import connect
from flnl.config.written import text_at
from flnl.console.terminal import print_line
from flnl.core.errors import Interrupted, UserError, in_one_line
from flnl.record.run import LOCK
from flnl.run.overrides import replaced
from flnl.storage.locks import free_after_error
from flnl.sweep import launchers
from flnl.sweep.job import shares_a_process, typed
from flnl.sweep.ledger import DONE, Job, Ledger
from flnl.sweep.progress import Watch
from flnl.sweep.table import labels, show

_open: list[Sweep] = []


class Refused(BaseException):
    """Carries a refusal past Hydra, which turns a callback's ``Exception`` into a warning."""

    def __init__(self, reason: Exception) -> None:
        super().__init__(str(reason))
        self.reason = reason


class Opening(Callback):
    """Hydra's callback at the start of a sweep; ``conf/config.yaml`` names it."""

    def on_multirun_start(self, config: DictConfig, **kwargs: Any) -> None:
        """Open the sweep."""
        try:
            launchers.name(config.hydra)
            _open.append(Sweep(config))
            launchers.install(str(config.hydra.launcher._target_))
        except (UserError, HydraException, OmegaConfBaseException) as error:
            raise Refused(error) from None


@contextmanager
def accounted() -> Iterator[None]:
    """Wrap Hydra's run; if it is a sweep, print the summary at the end.

    Raises:
        UserError: if a job is invalid; then none has begun.
        SystemExit: with 1 if a job has failed.
    """
    failure: BaseException | None = None
    try:
        yield
    except Refused as refused:
        raise refused.reason from None
    except BaseException as error:
        failure = error
    sweep = _open.pop() if _open else None
    if sweep is not None:
        sweep.end(failure)
    elif failure is not None:
        raise failure


class Sweep:
    """A sweep from its plan to its summary. Hydra expands the command into jobs, or they are given as a list."""

    in_use = "hydra.sweep.dir={folder} is in use by another sweep; choose another folder"
    """The message if another sweep is using ``folder``."""

    def __init__(self, config: DictConfig, jobs: Sequence[Sequence[str]] | None = None) -> None:
        chosen = config.hydra
        _check_launcher(chosen)
        self.folder = Path(str(chosen.sweep.dir))
        self._lock = _locked(self.folder, self.in_use)
        self._signal: int | None = None
        self._before: dict[int, Any] = {}
        self._watch: Watch | None = None
        with free_after_error(self._lock):
            self._begin(config, jobs)

    def _begin(self, config: DictConfig, jobs: Sequence[Sequence[str]] | None) -> None:
        chosen = config.hydra
        self.prepare()
        if jobs is None:
            jobs = _expanded(config)
            _check(config, jobs)
        self._ledger = Ledger(self.folder)
        self._ledger.plan(jobs, sys.argv[1:])
        if not shares_a_process(chosen):
            self._watch = Watch(self._ledger, self.labels)
            self._watch.start()
            if not elsewhere(chosen):  # a scheduler's jobs outlive this process
                self._before = {s: signal.signal(s, self._stop) for s in (signal.SIGINT, signal.SIGTERM)}
        else:
            self._before = {signal.SIGTERM: signal.signal(signal.SIGTERM, _interrupt)}

    def prepare(self) -> None:
        """Called when the folder is this sweep's alone, and still has the ledger of the one before."""

    def _stop(self, number: int, frame: FrameType | None) -> None:
        again, self._signal = self._signal is not None, number
        self._ledger.stop(number)
        for job in self._ledger.jobs():
            if job.status == "running" and job.here:
                with suppress(ProcessLookupError):
                    os.kill(job.pid, signal.SIGTERM)
        if again:
            raise Interrupted(number)
        print("\nstopping: jobs finish their round and save; once more stops at once", file=sys.stderr, flush=True)

    def end(self, failure: BaseException | None) -> None:
        """Print the outcome of every job.

        Args:
            failure: the exception with which the launcher has ended, if any.

        Raises:
            Interrupted: after a signal.
            SystemExit: with 1 if a job has not finished.
            BaseException: ``failure``, if it is a signal or no job has begun.
        """
        for number, handler in self._before.items():
            signal.signal(number, handler)
        if self._watch is not None:
            self._watch.stop()
        self._lock.release()
        if failure is None:
            self._ledger.close()
        jobs = self._ledger.jobs()
        if failure is not None and all(job.status == "waiting" for job in jobs):
            raise failure
        self.tell(jobs)
        if isinstance(failure, Exception):
            print_line(f"the launcher ended with {in_one_line(failure)}", to=sys.stderr)
        if failure is not None and not isinstance(failure, Exception):
            raise failure
        if self._signal is not None:
            raise Interrupted(self._signal)
        if failure is not None or any(job.status not in DONE for job in jobs):
            sys.exit(1)

    def labels(self, jobs: Sequence[Job]) -> dict[int, str]:
        """A label for each job, by its number."""
        return labels(jobs)

    def tell(self, jobs: Sequence[Job]) -> None:
        """Print all jobs, and the commands that continue and synchronise them."""
        from flnl.config.quoting import quoted
        from flnl.run.train import command

        show(self.folder, jobs)
        if any(job.status not in ("finished", "refused") for job in jobs):
            place = f"hydra.sweep.dir={quoted(str(self.folder))}"
            again = replaced(sys.argv[1:], ("hydra.sweep.dir", "max_rounds"), place)
            print_line(f"to go on: {command(again)}", to=sys.stderr)
        if places := _patterns([job.unsynchronised for job in jobs if job.unsynchronised], self.folder):
            print_line(f"to upload the metrics: wandb sync {' '.join(places)}", to=sys.stderr)


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)


def elsewhere(chosen: DictConfig) -> bool:
    """Whether a scheduler runs the jobs on other machines."""
    return "slurm" in str(chosen.launcher._target_).lower()


def _check_launcher(chosen: DictConfig) -> None:
    """Refuse a scheduler that is not on this machine.

    Raises:
        UserError: naming what is missing.
    """
    if elsewhere(chosen) and shutil.which("srun") is None:
        raise UserError(
            "hydra/launcher=submitit_slurm: there is no srun on this machine; start the sweep where Slurm's commands "
            "are, such as a cluster's login node, or choose hydra/launcher=joblib"
        )


def planned(config: DictConfig) -> Iterator[tuple[int, list[str], DictConfig, Path]]:
    """The jobs of a sweep, none of which begins: number, overrides, configuration and folder of each.

    Raises:
        UserError: if a job is invalid.
    """
    str(config.hydra.sweep.dir)  # the time in it is this one's from now on
    jobs = _expanded(config)
    _check(config, jobs)
    for number, job in enumerate(jobs):
        with _told(number, jobs):
            cfg, folder = _as_launched(config, job, number)
            connect(cfg, job)
        yield number, job, cfg, folder.path
    HydraConfig.instance().set_config(copy.deepcopy(config))


def _locked(folder: Path, in_use: str) -> FileLock:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder / LOCK, timeout=0)
        lock.acquire()
    except Timeout:
        raise UserError(in_use.format(folder=folder)) from None
    except OSError as error:
        reason = error.strerror or error
        raise UserError(f"hydra.sweep.dir={folder}: {reason}; choose a folder you can write to") from None
    return lock


def _expanded(config: DictConfig) -> list[list[str]]:
    """The overrides of every job, as Hydra's basic sweeper expands them; empty with another sweeper.

    Interpolations stay as they are: each job resolves them in its own configuration.
    """
    if not str(config.hydra.sweeper._target_).endswith(".BasicSweeper"):
        return []
    _move_params(config)
    parser = OverridesParser.create(config_loader=GlobalHydra.instance().config_loader())
    overrides = parser.parse_overrides(typed(config.hydra))
    jobs = BasicSweeper.split_arguments(overrides, None)[0]
    if not jobs:
        empty = [o.input_line for o in overrides if o.is_sweep_override() and not list(o.sweep_string_iterator())]
        raise UserError(f"{', '.join(map(str, empty))} gives no value, so the sweep has no jobs")
    return jobs


def _move_params(config: DictConfig) -> None:
    """Put what files set in ``hydra.sweeper.params`` before what was typed, where Hydra's sweeper would put it.

    The sweeper itself would resolve their interpolations in a configuration that belongs to no job.
    """
    chosen = config.hydra
    if not chosen.sweeper.params:
        return
    params = [f"{key}={chosen.sweeper.params._get_node(key)}" for key in chosen.sweeper.params]
    with read_write(config), open_dict(config):
        chosen.overrides.task = [*(one.replace(r"\${", "${") for one in params), *typed(chosen)]
        chosen.sweeper.params = None


TOGETHER = ("train.", "method.")
"""Sections whose values must fit those of each other: a rate and the one that a cosine ends at, a stage's number."""


def _check(composed: DictConfig, jobs: Sequence[Sequence[str]]) -> None:
    """Check enough jobs that every value of every axis is checked, and every combination of what must fit together.

    A value that is computed of others is checked in every job, since each may have another.

    Raises:
        UserError: naming the job.
    """
    from flnl.engine.placement import device_for
    from flnl.run.opening import method_of  # imports all that runs need

    seen: set[object] = set()
    rest: list[int] = []
    taken: dict[Path, int] = {}
    named = False
    for number, job in enumerate(jobs):
        together = frozenset((*choices_of(job), *(one for one in job if dotted(one).startswith(TOGETHER))))
        if any("$" in one and key_of(one) != "output" for one in job):
            together = frozenset(job)
        if {*job, together} <= seen:
            rest.append(number)
            continue
        seen |= {*job, together}
        with _told(number, jobs):
            cfg, folder = _as_launched(composed, job, number)
            connect(cfg, job)
            check_config(cfg)
            if not elsewhere(composed.hydra):
                check_machine(cfg)
                device_for(cfg.device)
            method_of(cfg, job)
        _take(folder, number, taken)
        named |= folder.named
    for number in rest if named else ():
        with _told(number, jobs):
            _, folder = _as_launched(composed, jobs[number], number)
        _take(folder, number, taken)
    HydraConfig.instance().set_config(copy.deepcopy(composed))


@contextmanager
def _told(number: int, jobs: Sequence[Sequence[str]]) -> Iterator[None]:
    """Say in which job a mistake is."""
    try:
        yield
    except (UserError, HydraException, OmegaConfBaseException) as error:
        reason = explain.explain(error, jobs[number])
        raise UserError(reason if len(jobs) == 1 else f"job {number}: {reason}; no job has begun") from None


class Folder(NamedTuple):
    """Where a job will run, and the override that says so."""

    path: Path
    override: str
    named: bool  # otherwise by the job's number alone


def _as_launched(composed: DictConfig, job: Sequence[str], number: int) -> tuple[DictConfig, Folder]:
    """The configuration that a job will have, in which its interpolations are resolved, and the job's folder."""
    cfg = GlobalHydra.instance().config_loader().load_sweep_config(composed, list(job))
    with open_dict(cfg):
        cfg.hydra.job.id = cfg.hydra.job.num = number
    HydraConfig.instance().set_config(cfg)
    sweep = cfg.hydra.sweep
    if sweep.dir != composed.hydra.sweep.dir:
        raise UserError(f"hydra.sweep.dir={sweep.dir}: it is of all jobs; what differs goes into {SUBDIR}")
    place = Path(str(sweep.dir), str(sweep.subdir)).absolute()
    folder = Folder(place, f"{SUBDIR}={sweep.subdir}", "job.num}" not in str(text_at(cfg, SUBDIR)))
    with read_write(cfg.hydra.runtime), open_dict(cfg.hydra.runtime):
        cfg.hydra.runtime.output_dir = str(place)
    HydraConfig.instance().set_config(cfg)  # as Hydra does, once the subfolder is known
    here = place if cfg.hydra.job.chdir else Path.cwd()
    cfg = copy.deepcopy(cfg)  # Hydra's part stays where ${hydra:...} looks for it
    with read_write(cfg), open_dict(cfg):
        del cfg["hydra"]
    if cfg.output is not None:
        folder = Folder(here / Path(str(cfg.output)).expanduser(), f"output={cfg.output}", named=True)
    return cfg, folder


SUBDIR = "hydra.sweep.subdir"


def _take(folder: Folder, number: int, taken: dict[Path, int]) -> None:
    """Note the folder of a job.

    Raises:
        UserError: if another job would run there.
    """
    other = taken.setdefault(Path(os.path.realpath(folder.path)), number)
    if other != number:
        raise UserError(
            f"{folder.override}: jobs {other} and {number} would both run in this folder; leave it out, or name the "
            f"jobs in it, as in '{key_of(folder.override)}=runs/${{hydra:job.num}}'"
        )


def _patterns(folders: Sequence[str], sweep: Path) -> list[str]:
    """The folders as arguments for a shell, those below the sweep's folder combined into one pattern."""
    inside = [f for f in folders if Path(f).parent.parent.parent == sweep.absolute()]
    pattern = f"{shlex.quote(str(sweep))}/*/wandb/offline-run-*"
    others = [shlex.quote(f) for f in folders if f not in inside]
    return ([pattern] if inside else []) + others
