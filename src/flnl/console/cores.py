"""The processor, and how many of its cores this process may use."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from functools import cache
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


def usable_cores() -> int:
    """Cores that this process may use: its CPU affinity, or less if its container has a CPU quota."""
    bound = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return min(bound, max(1, int(quota) // int(period)))
    except (OSError, ValueError):  # no such file, or "max"
        return bound


def multiplies_bf16() -> bool:
    """Whether the processor has units for products of matrices in bf16, as its flags on Linux say: Intel's AMX."""
    try:
        lines = CPUINFO.read_text().splitlines()
    except OSError:
        return False
    return "amx_bf16" in next((line.split() for line in lines if line.startswith("flags")), [])


@cache
def processor() -> str:
    """The processor's model, as "Intel(R) Xeon(R) Platinum 8481C": on Linux by ``/proc/cpuinfo``, on macOS by sysctl.

    Where neither has a name, as of ARM on Linux, what Python's ``platform`` knows of it.
    """
    name = ""
    try:
        if sys.platform == "darwin":
            asked = ["sysctl", "-n", "machdep.cpu.brand_string"]
            name = subprocess.run(asked, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
        else:
            lines = CPUINFO.read_text().splitlines()
            name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    except (OSError, subprocess.SubprocessError):
        pass
    return name or platform.processor() or platform.machine() or "unknown"
