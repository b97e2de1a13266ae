"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from src.disk import writing


def write_atomically(path: Path, data: bytes) -> None:
    """All of ``data`` at ``path``, or what was there before: written beside, flushed to the disk, renamed.

    Raises:
        DiskFullError: where there is no space for it.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            with beside.open("wb") as file:
                file.write(data)
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
