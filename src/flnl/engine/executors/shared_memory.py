"""Memory that several processes see at once. It has no name, so nothing stays behind however they end."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass

from flnl.engine.executors.serialization import Data, Packed

ALIGNED = 64
"""Bytes; a piece begins at a multiple of it, as torch's own tensors do."""


@dataclass(frozen=True)
class Place:
    """Where a packed value lies, for a process that has inherited ``descriptor``."""

    descriptor: int
    size: int
    ends: Sequence[tuple[int, int]]  # first and last byte + 1 of the header and of every piece

    def map(self) -> Packed:
        """The value, over memory that whoever has the same descriptor sees, too."""
        memory = mmap.mmap(self.descriptor, self.size)
        header, *pieces = (memoryview(memory)[start:end] for start, end in self.ends)
        return Packed(bytes(header), pieces)


def place(packed: Packed) -> Place:
    """Copy a packed value into memory that processes started with this descriptor can map."""
    parts: list[Data] = [packed.header, *packed.pieces]
    ends, end = [], 0
    for part in parts:
        start = -(-end // ALIGNED) * ALIGNED
        end = start + memoryview(part).nbytes
        ends.append((start, end))
    found = Place(_anonymous(max(end, 1)), max(end, 1), ends)
    with mmap.mmap(found.descriptor, found.size) as memory:
        for part, (first, last) in zip(parts, ends, strict=True):
            memory[first:last] = part
    return found


def _anonymous(size: int) -> int:
    """The descriptor of ``size`` bytes of memory; where the system has no such thing, of a file without a name."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("flnl")  # unlike /dev/shm, not small in a container
    else:
        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    os.ftruncate(descriptor, size)
    return descriptor
