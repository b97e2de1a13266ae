"""Locks of folders that hold only as long as somebody works there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from filelock import FileLock


@contextmanager
def free_after_error(lock: FileLock) -> Iterator[None]:
    """Release ``lock`` if the block raises: whoever keeps the error keeps its frames, and with them the lock."""
    try:
        yield
    except BaseException:
        lock.release()
        raise
