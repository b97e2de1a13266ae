"""How the jobs of a sweep share the GPUs of a machine."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import ceil
from pathlib import Path
from typing import TypeVar

from flnl.sweep.job import end_with

T = TypeVar("T")
S = TypeVar("S")

MPS, MPS_HERE = "CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps"
"""NVIDIA's Multi-Process Service: the variable that names its folder, and where it is by default."""


@dataclass(frozen=True)
class Share:
    """The GPUs of a sweep's jobs, and how many jobs run at once.

    A worker keeps its GPU and takes the next job once its own has ended, so no GPU idles while a job waits.
    """

    gpus: tuple[str, ...]  # as CUDA_VISIBLE_DEVICES names them, or as jobs do; none if all are on the CPU
    kind: str | None  # of device, if each worker sees one of them alone; None if jobs name theirs, as in device=cuda:1
    workers: int
    measured: bool = False  # that so many jobs at once train most

    @classmethod
    def of(
        cls,
        devices: Collection[str],
        jobs: int,
        n_jobs: int,
        each: Callable[[str], int | None] = lambda kind: None,
    ) -> Share:
        """The share of ``jobs`` jobs on ``devices``, values of ``device``.

        Args:
            devices: the values.
            jobs: their number.
            n_jobs: how many run at once; -1 stands for ``each`` on each GPU, if all jobs take any of them.
            each: how many at a time train most on a GPU of this kind of device; None, for one, if nobody knows.

        Raises:
            UserError: if there is no such device.
        """
        from joblib import effective_n_jobs

        from flnl.engine.placement import device_for, visible  # torch takes seconds to import

        placed = {device: place for device in devices if (place := device_for(device)).type != "cpu"}
        there = next((place.type for place in placed.values()), None)
        kind = None if any(":" in device for device in placed) else there
        gpus = sorted({str(place) for place in placed.values()}) if kind is None else visible(kind)
        if there is None or n_jobs != -1:
            return cls(tuple(gpus), kind, min(effective_n_jobs(n_jobs), jobs))
        best = each(there) if kind is not None and len(placed) == len(set(devices)) else None
        return cls(tuple(gpus), kind, min(len(gpus) * (best or 1), jobs), best is not None)

    def environment(self, worker: int) -> Mapping[str, str]:
        """What a worker has in its environment besides what this process has."""
        if self.kind is None:
            return {}
        from flnl.engine.placement import VISIBLE

        return {VISIBLE: self.gpus[worker % len(self.gpus)]}

    def warnings(self) -> list[str]:
        """A line for each GPU of whose memory other processes hold much."""
        import torch

        from flnl.engine.placement import taken

        names = [f"{self.kind}:{number}" for number in range(len(self.gpus))] if self.kind else self.gpus
        return [line for line in seen(taken, *map(torch.device, names)) if line]

    def told(self, jobs: int) -> str:
        """The share of GPUs in words, such as ``6 jobs on 2 GPUs, 1 at a time on each``."""
        used = min(len(self.gpus), self.workers)
        most = ceil(self.workers / used)
        text = f"{jobs} job{'s' * (jobs > 1)} on {used} GPU{'s' * (used > 1)}, "
        text += f"{'up to ' * (self.workers % used > 0)}{most} at a time{' on each' * (used > 1)}"
        if most == 1 and jobs > self.workers and not self.measured:
            text += f"; hydra.launcher.n_jobs={2 * used} would run 2, flnl doctor --jobs measures how many are best"
        elif most > 1 and not Path(os.environ.get(MPS, MPS_HERE), "control").exists():
            text += "; they take turns there: nvidia-cuda-mps-control -d lets their kernels run side by side"
        return text


def seen(look: Callable[[T], S], *at: T) -> list[S]:
    """What a process of its own sees when it looks at GPUs, since one that has looked keeps some of their memory.

    It is nothing if that fails: jobs on this GPU will say more.
    """
    from joblib.externals.loky import ProcessPoolExecutor

    with suppress(RuntimeError), ProcessPoolExecutor(1, initializer=end_with, initargs=(os.getpid(),)) as once:
        return list(once.map(look, at))
    return []
