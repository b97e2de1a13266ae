"""How many cores this process may use."""

from __future__ import annotations

import os
from pathlib import Path


def usable_cores() -> int:
    """Cores that this process may use: its CPU affinity, or less if its container has a CPU quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(bound, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return bound
