"""Hydra's joblib launcher, changed so that a dying worker costs only its own job.

joblib has one pool for all workers: if one is killed, the pool kills the others and ends. Here every worker is a
separate pool, which lives for the whole sweep, imports torch once, and is replaced if it dies.
"""

from __future__ import annotations

import logging
import math
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.singleton import Singleton
from hydra.core.utils import JobReturn, JobStatus, configure_log, setup_globals
from hydra_plugins.hydra_joblib_launcher.joblib_launcher import JoblibLauncher
from omegaconf import DictConfig, OmegaConf

from flnl.config.override_text import key_of
from flnl.console.terminal import print_line
from flnl.run.budget import training_kind
from flnl.run.paces_here import cards_here, kept_in
from flnl.storage.paces import Paces
from flnl.sweep.gpus import Share, seen
from flnl.sweep.job import end_with

log = logging.getLogger(__name__)

Job = tuple[int, Sequence[str]]
"""A job's number and its overrides."""


class Workers(JoblibLauncher):  # type: ignore[misc]  # Hydra's plugin is untyped
    """The launcher behind ``hydra/launcher=joblib``; of joblib's settings, only ``n_jobs`` is used.

    On GPUs, -1 stands for as many jobs on each as ``flnl doctor --jobs`` found to train most there, or one.
    """

    _told = False  # of GPUs; a sweeper that optimises launches many times
    _cards: set[str] | None = None  # the GPUs' names, once somebody has looked

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs, each in the next free worker; return their results in order.

        Raises:
            UserError: if there is no such device as a job asks for.
        """
        assert self.config is not None
        setup_globals()
        configure_log(self.config.hydra.hydra_logging, self.config.hydra.verbose)
        Path(str(self.config.hydra.sweep.dir)).mkdir(parents=True, exist_ok=True)
        given = (self.hydra_context, self.config, self.task_function, Singleton.get_state())
        jobs = list(enumerate(job_overrides, initial_job_idx))
        n_jobs = self.joblib.get("n_jobs", -1)
        share = Share.of(
            self._devices(job_overrides), len(jobs), n_jobs, lambda kind: self._at_once(job_overrides, kind)
        )
        if share.gpus and not self._told:
            self._told = True
            for line in (share.told(len(jobs)), *(f"warning: {line}" for line in share.warnings())):
                print_line(line, to=sys.stderr)
        first, rest = jobs[: share.workers], jobs[share.workers :]
        crew = Crew(iter(rest), given, share)
        with ThreadPoolExecutor(share.workers, thread_name_prefix="worker") as threads:
            try:
                for done in [threads.submit(crew.work, *of_one) for of_one in enumerate(first)]:
                    done.result()
            except BaseException:
                crew.kill()
                raise
        return [crew.results[number] for number, _ in jobs]

    def _devices(self, jobs: Sequence[Sequence[str]]) -> set[str]:
        """The values of ``device`` of the jobs; those that override it alike are composed once."""
        different = {tuple(one for one in job if key_of(one) == "device"): job for job in jobs}
        return {str(self._composed(job).device) for job in different.values()}

    def _at_once(self, jobs: Sequence[Sequence[str]], kind: str) -> int | None:
        """How many of these jobs at once train most on each GPU; None if the doctor has not measured it here."""
        timed = Paces.load(kept_in())
        if all(pace.runs is None for pace in timed.values):
            return None
        kinds = set()
        for cfg in map(self._composed, jobs):
            trained = {name: OmegaConf.to_container(cfg[name], resolve=True) for name in ("dataset", "model", "train")}
            kinds.add(training_kind({**trained, "precision": cfg.precision}))
        if self._cards is None:
            self._cards = set().union(*seen(cards_here, kind))
        return timed.runs_at_once(kinds, self._cards)

    def _composed(self, job: Sequence[str]) -> DictConfig:
        cfg: DictConfig = self.hydra_context.config_loader.load_sweep_config(self.config, list(job))
        return cfg


@dataclass
class Crew:
    """The workers of one sweep, each with a thread that gives it jobs until none is left."""

    jobs: Iterator[Job]
    given: tuple[Any, ...]  # arguments that Hydra's plugin passes to every job besides its number and overrides
    share: Share
    results: dict[int, JobReturn] = field(default_factory=dict)  # by job number
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _pools: set[Any] = field(default_factory=set)

    def work(self, number: int, first: Job) -> None:
        """Give jobs to one worker, and start another on the same GPU if it dies."""
        pool: Any = None
        job: Job | None = first
        while job is not None:
            pool = pool or self._pool(number)
            try:
                self.results[job[0]] = _submitted(pool, job, self.given).result()
            except BrokenProcessPool:
                log.debug("the worker of job %d is gone", job[0])
                self.results[job[0]] = unfinished(job[1])
                self._pools.discard(pool)
                pool.shutdown(wait=False, kill_workers=True)
                pool = None
            job = self._next()
        if pool is not None:
            pool.shutdown()
            self._pools.discard(pool)

    def kill(self) -> None:
        """Kill all workers; their jobs stop where they are."""
        with self._lock:
            self.jobs = iter(())
        for pool in list(self._pools):
            pool.shutdown(wait=False, kill_workers=True)

    def _next(self) -> Job | None:
        with self._lock:
            return next(self.jobs, None)

    def _pool(self, number: int) -> Any:
        from joblib.externals.loky import ProcessPoolExecutor

        environment = {**self.share.environment(number)}
        pool = ProcessPoolExecutor(max_workers=1, initializer=end_with, initargs=(os.getpid(),), env=environment)
        self._pools.add(pool)
        return pool


def unfinished(overrides: Sequence[str]) -> JobReturn:
    """The result of a job that ended without one: its score is NaN."""
    result = JobReturn(overrides=overrides, status=JobStatus.COMPLETED)
    result.return_value = math.nan
    return result


def _submitted(pool: Any, job: Job, given: tuple[Any, ...]) -> Future[JobReturn]:
    from hydra_plugins.hydra_joblib_launcher._core import execute_job

    submitted: Future[JobReturn] = pool.submit(execute_job, *job, *given)
    return submitted


def install() -> None:
    """Make Hydra create ``Workers`` for its joblib launcher."""
    name = f"{JoblibLauncher.__module__}.{JoblibLauncher.__qualname__}"
    Plugins.instance().class_name_to_class[name] = Workers
