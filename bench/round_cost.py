"""The costs of a round besides local training: all its parts, timed in a real run of the sequential executor.

``python -m bench.round_cost JOB.json FOLDER ROUNDS``

LeNet-5 with 100 clients, an evaluation and a checkpoint every round, W&B writing to its offline folder: an upper limit
of these costs. By default, a checkpoint is due only once a minute.
"""

from __future__ import annotations

import functools
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.ours import opened
from bench.workloads import Job, Workload
from flnl.engine import jobs, loop
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.evaluation.evaluator import Evaluator
from flnl.run import checkpoint, mirror

WORKLOAD = Workload(
    "round", "LeNet-5, 100 clients", "lenet5", "pixels", cohort=10, turn=1, clients=100, samples=500, peers=False
)
SHOWN = ("local training", "sampling", "shipping", "aggregation", "evaluation", "checkpoint", "logging", "W&B", "rest")


class Clock:
    """Seconds by label. Nested measurements count only for the inner label."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self._open: list[float] = []  # seconds of inner calls, for each call on the stack

    @contextmanager
    def time(self, label: str) -> Iterator[None]:
        """Measure the block."""
        began = time.perf_counter()
        self._open.append(0.0)
        try:
            yield
        finally:
            took, inner = time.perf_counter() - began, self._open.pop()
            self.seconds[label] += took - inner
            if self._open:
                self._open[-1] += took

    def watch(self, owner: Any, name: str, label: str) -> None:
        """Measure every call of ``owner.name``."""
        whole = getattr(owner, name)

        @functools.wraps(whole)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.time(label):
                return whole(*args, **kwargs)

        setattr(owner, name, timed)


def measure(job: Job, folder: Path, rounds: int) -> dict[str, float]:
    """Seconds per round by label; ``rest`` is everything without a label."""
    os.environ["WANDB_MODE"] = "offline"
    with opened(job, "sequential", folder, "checkpoint.every=1", "wandb.mode=offline") as run:
        clock = Clock()
        stage = run.method.stages[0]
        clock.watch(loop._Round, "tasks", "shipping")
        clock.watch(Network, "load", "shipping")
        clock.watch(Network, "params", "shipping")
        clock.watch(loop, "size_in_bytes", "shipping")
        clock.watch(LocalTraining, "__call__", "local training")
        clock.watch(type(stage.sampler), "__call__", "sampling")
        clock.watch(jobs.Reduce, "__call__", "aggregation")
        clock.watch(type(stage.aggregator), "combine", "aggregation")
        clock.watch(type(stage.server), "__call__", "aggregation")
        clock.watch(Evaluator, "model", "evaluation")
        clock.watch(checkpoint, "save", "checkpoint")
        clock.watch(type(run), "keep", "checkpoint")
        clock.watch(mirror.Mirror, "log", "W&B")
        clock.watch(type(run), "log", "logging")
        results = run.results()
        for number in range(rounds + 1):
            if number == 1:  # the first round warms up
                clock.seconds.clear()
                began = time.perf_counter()
            result = next(results)
            run.log(result)
            run.keep(now=False)
        whole = time.perf_counter() - began
        costs = {label: seconds / rounds for label, seconds in clock.seconds.items()}
        run.close("interrupted")
    return {**costs, "rest": whole / rounds - sum(costs.values())}


if __name__ == "__main__":
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    print(json.dumps(measure(Job.load(Path(sys.argv[1])), Path(sys.argv[2]), int(sys.argv[3]))), file=out, flush=True)
