"""Hydra's submitit launchers, changed so that a job that ends without a result costs only itself.

Hydra's plugin collects results in the order of the jobs, and ends at the first that has none: one that the scheduler
has killed for memory or time, say. The jobs after it still run then, and nobody waits for them.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra_plugins.hydra_submitit_launcher import submitit_launcher as plugin

from flnl.sweep.workers import unfinished

log = logging.getLogger(__name__)


class Submitted:
    """A job of submitit, whose result is that of an unfinished job if it has none."""

    def __init__(self, job: Any, overrides: Sequence[str]) -> None:
        self._job, self._overrides = job, overrides

    def results(self) -> list[JobReturn]:
        """Wait for the end of the job; its one result."""
        from submitit.core.utils import UncompletedJobError

        try:
            results: list[JobReturn] = self._job.results()
        except UncompletedJobError as error:
            log.debug("job %s has no result (%s)", self._job.job_id, error)
            return [unfinished(self._overrides)]
        return results


class Collecting(plugin.BaseSubmititLauncher):  # type: ignore[misc]  # Hydra's plugin is untyped
    """A launcher that waits for all jobs."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Run the jobs, wait until all have ended, and return their results in order."""
        import submitit

        executors: Any = submitit.AutoExecutor
        submit = executors.map_array

        def submitted(executor: Any, task: Any, *parameters: Any) -> list[Submitted]:
            jobs = submit(executor, task, *parameters)
            return [Submitted(job, overrides) for job, overrides in zip(jobs, job_overrides, strict=True)]

        executors.map_array = submitted
        try:
            results: Sequence[JobReturn] = super().launch(job_overrides, initial_job_idx)
        finally:
            executors.map_array = submit
        return results


class Local(Collecting, plugin.LocalLauncher):  # type: ignore[misc]
    """The launcher behind ``hydra/launcher=submitit_local``."""


class Slurm(Collecting, plugin.SlurmLauncher):  # type: ignore[misc]
    """The launcher behind ``hydra/launcher=submitit_slurm``."""


def install() -> None:
    """Make Hydra create these launchers for those of the plugin."""
    for theirs, ours in ((plugin.LocalLauncher, Local), (plugin.SlurmLauncher, Slurm)):
        Plugins.instance().class_name_to_class[f"{theirs.__module__}.{theirs.__qualname__}"] = ours
