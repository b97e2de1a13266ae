"""Atomic writing of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from flnl.storage.disk import writing


@contextmanager
def written_atomically(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces ``path`` atomically when the block ends: written beside it, flushed, then renamed.

    If the block raises, ``path`` is unchanged.

    Raises:
        DiskFullError: if the disk is full.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            with beside.open("wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            beside.replace(path)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically.

    Raises:
        DiskFullError: if the disk is full.
    """
    with written_atomically(path) as file:
        file.write(data)
