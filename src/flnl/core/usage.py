"""What a process uses of its machine: seconds of CPU, and memory."""

from __future__ import annotations

import resource
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch

from flnl.core.stored import stored

PEAK, RESET = Path("/proc/self/status"), Path("/proc/self/clear_refs")


@stored("Usage")
class Usage:
    """What has been used of CPUs and memory."""

    cpu_seconds: float = 0.0  # of all threads
    memory: int = 0  # most bytes of memory at once
    gpu_memory: int = 0  # most bytes of a GPU's memory in tensors at once

    def after(self, earlier: Usage) -> Usage:
        """What was used with ``earlier`` before: seconds add up, of memory the most counts."""
        return Usage(
            self.cpu_seconds + earlier.cpu_seconds,
            max(self.memory, earlier.memory),
            max(self.gpu_memory, earlier.gpu_memory),
        )

    def beside(self, other: Usage) -> Usage:
        """What two processes use at the same time: everything adds up."""
        return Usage(
            self.cpu_seconds + other.cpu_seconds, self.memory + other.memory, self.gpu_memory + other.gpu_memory
        )


class Used:
    """What this process uses. Its memory counts from now on, if the system can tell (Linux); else since it began."""

    def __init__(self, device: torch.device, *, whole: bool = False) -> None:
        """``whole``: count also the CPU that the process has used before now."""
        library = None if device.type == "cpu" else torch.get_device_module(device)
        self._gpu = library if hasattr(library, "max_memory_allocated") else None
        self._device = device
        self._begun = 0.0 if whole else time.process_time()
        with suppress(OSError):
            RESET.write_text("5")  # the peak of resident memory (man 5 proc)
        if self._gpu is not None:
            self._gpu.reset_peak_memory_stats(device)

    def pop(self) -> Usage:
        """The CPU since the last call, and the most memory so far."""
        earlier, self._begun = self._begun, time.process_time()
        in_tensors = 0 if self._gpu is None else self._gpu.max_memory_allocated(self._device)
        return Usage(self._begun - earlier, _peak(), int(in_tensors))


def _peak() -> int:
    """The most bytes of memory that this process has had at once."""
    try:
        lines = PEAK.read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        # elsewhere; on Linux this counts what the process was before it became this program
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
