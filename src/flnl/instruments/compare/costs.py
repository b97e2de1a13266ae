"""What runs cost, as their records count it; docs/running.md says what each number means."""

from __future__ import annotations

import math
from dataclasses import dataclass

from flnl.record.run import RunRecord

MIB = 2**20


@dataclass(frozen=True)
class Cost:
    """One number: its key in ``result.json``, ``key`` for ``--sort``, heading with unit, and column of CSV files."""

    recorded: str
    key: str
    heading: str
    csv: str
    factor: float = 1.0

    def of(self, record: RunRecord) -> float | None:
        """Its finite number of a run, in the heading's unit; None if there is none."""
        held = getattr(record, self.recorded)
        return self.factor * held if held is not None and math.isfinite(held) else None


PARTICIPATIONS = Cost("participations", "participations", "participations", "participations")
COMMUNICATION = Cost("bytes", "communication", "communication, MiB", "communication_mib", 1 / MIB)
TIME = Cost("wall_time_s", "time", "wall time, s", "wall_time_s")
COSTS = (
    PARTICIPATIONS,
    Cost("training_passes", "passes", "training passes", "training_passes"),
    Cost("forward_passes", "forward", "forward passes", "forward_passes"),
    Cost("optimizer_steps", "steps", "optimiser steps", "optimizer_steps"),
    COMMUNICATION,
    TIME,
    Cost("cpu_time_s", "cpu", "CPU time, s", "cpu_time_s"),
    Cost("peak_memory", "memory", "peak memory, MiB", "peak_memory_mib", 1 / MIB),
    Cost("peak_gpu_memory", "gpu_memory", "peak GPU memory, MiB", "peak_gpu_memory_mib", 1 / MIB),
)
