"""Atomic writing of files."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from flnl.core.errors import DiskFullError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""No space left, quota exceeded, or a file larger than the system allows."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Wrap the writing of ``path``.

    Raises:
        DiskFullError: if the disk is full; other errors pass unchanged.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or isinstance(error, DiskFullError):
            raise
        message = f"the disk is full: {path.parent} cannot take {path.name} ({error.strerror}); make room and resume"
        raise DiskFullError(error.errno, message) from error


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
    flush_names(path.parent)


def flush_names(folder: Path) -> None:
    """Flush the names of a folder's files to the disk, so that one that was renamed is found after a crash."""
    opened = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def write_atomically(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path`` atomically.

    Raises:
        DiskFullError: if the disk is full.
    """
    with written_atomically(path) as file:
        file.write(data)
