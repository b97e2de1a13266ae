"""Anonymous shared memory: it has no name, so the system frees it however the processes end."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from flnl.engine.executors.serialization import Data, Packed

ALIGNED = 64
"""Alignment of each piece in bytes, the same as that of torch's tensors."""


@dataclass(frozen=True)
class Place:
    """The location of a packed value in shared memory; usable in processes that inherit ``descriptor``."""

    descriptor: int
    size: int
    ends: Sequence[tuple[int, int]]  # [start, stop) in bytes of the header and of every piece

    def map(self) -> Packed:
        """Map the value: its pieces are views of the shared memory."""
        memory = mmap.mmap(self.descriptor, self.size)
        header, *pieces = (memoryview(memory)[start:end] for start, end in self.ends)
        return Packed(bytes(header), pieces)


def place(packed: Packed) -> Place:
    """Copy a packed value into new shared memory."""
    parts: list[Data] = [packed.header, *packed.pieces]
    ends, end = [], 0
    for part in parts:
        start = -(-end // ALIGNED) * ALIGNED
        end = start + memoryview(part).nbytes
        ends.append((start, end))
    location = Place(_anonymous(max(end, 1)), max(end, 1), ends)
    with mmap.mmap(location.descriptor, location.size) as memory:
        for part, (first, last) in zip(parts, ends, strict=True):
            memory[first:last] = part
    return location


def _anonymous(size: int) -> int:
    """A descriptor of ``size`` bytes of anonymous memory; of an unnamed temporary file if the system has no memfd."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("flnl")  # containers often limit /dev/shm, but not memfd
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
