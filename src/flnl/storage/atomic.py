"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from flnl.storage.disk import writing


@contextmanager
def written_atomically(path: Path) -> Iterator[BinaryIO]:
    """A file that is at ``path`` once this is left, whole, or what was there before: written beside, flushed, renamed.

    Raises:
        DiskFullError: where there is no space for it.
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
    """All of ``data`` at ``path``, or what was there before.

    Raises:
        DiskFullError: where there is no space for it.
    """
    with written_atomically(path) as file:
        file.write(data)
