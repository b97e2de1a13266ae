"""Write a folder whole or not at all, in the place of an earlier one or not."""

from __future__ import annotations

import ctypes
import fcntl
import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A new folder beside ``folder`` that takes its place when the block ends; if the block raises, it is removed.

    An existing ``folder`` is exchanged for the new one in one step, where the system can, and then deleted. What
    processes that were killed have left is removed.

    Raises:
        OSError: if it cannot be written.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_left_over(folder)
    fresh = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    fresh.mkdir()
    lock = os.open(fresh, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # shows other processes that somebody writes there
        yield fresh
        if folder.exists():
            _exchange(fresh, folder)
            shutil.rmtree(fresh)
        else:
            fresh.rename(folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _remove_left_over(folder: Path) -> None:
    for beside in folder.parent.glob(f".{_literal(folder.name)}.????????"):
        try:
            lock = os.open(beside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(beside, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


def _literal(name: str) -> str:
    """A pattern that matches ``name`` alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


AT_FDCWD, RENAME_EXCHANGE, RENAME_SWAP = -100, 2, 2


def _exchange(one: Path, other: Path) -> None:
    """Exchange two folders; in one step on Linux and macOS, if the file system can."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        failed = libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)
    elif sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        failed = libc.renamex_np(*names, RENAME_SWAP)
    else:
        failed = -1
    if failed:
        aside = one.with_name(f"{one.name}.old")
        other.rename(aside)
        try:
            one.rename(other)
        except BaseException:
            aside.rename(other)
            raise
        aside.rename(one)
