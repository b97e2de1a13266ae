"""Write a folder whole or not at all, instead of an earlier one or not."""

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

ASIDE = ".old"
"""Ending of the name that an earlier folder has while the new one takes its place."""


@contextmanager
def written_whole(folder: Path) -> Iterator[Path]:
    """A new folder beside ``folder`` that takes its place when the block ends; if the block raises, it is removed.

    An existing ``folder`` is exchanged for the new one in one step, where the system can, and then deleted. What
    processes that were killed have left is removed, but an earlier folder that one of them has put aside is put back.

    Raises:
        OSError: if it cannot be written. Once the new folder is in its place, nothing is raised.
    """
    folder = folder.resolve()  # so that it has a name, also as "."
    folder.parent.mkdir(parents=True, exist_ok=True)
    _clear_up(folder)
    fresh = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}")
    try:
        fresh.mkdir()
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(folder)) from error  # the name that the user knows
    lock = os.open(fresh, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # shows other processes that somebody writes there
        yield fresh
        if folder.exists():
            replaced = _exchange(fresh, folder)
            shutil.rmtree(replaced, ignore_errors=True)  # the next call removes what is left
        else:
            fresh.rename(folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise
    finally:
        os.close(lock)


def _clear_up(folder: Path) -> None:
    """Remove what processes that were killed have left beside ``folder``, or put it back where it is all there is."""
    name = f".{_literal(folder.name)}.????????"
    for beside in (*folder.parent.glob(f"{name}{ASIDE}"), *folder.parent.glob(name)):
        writer = beside.with_name(beside.name.removesuffix(ASIDE))
        try:
            lock = os.open(writer if writer.exists() else beside, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if beside != writer and not folder.exists():
                beside.rename(folder)
            else:
                shutil.rmtree(beside, ignore_errors=True)
        except BlockingIOError:
            continue
        finally:
            os.close(lock)


def _literal(name: str) -> str:
    """A pattern that matches ``name`` alone."""
    return "".join(f"[{c}]" if c in "*?[" else c for c in name)


AT_FDCWD, RENAME_EXCHANGE, RENAME_SWAP = -100, 2, 2


def _exchange(fresh: Path, folder: Path) -> Path:
    """Put ``fresh`` instead of ``folder``, in one step if the system can; return where the earlier folder is."""
    if _swapped(fresh, folder):
        return fresh
    aside = fresh.with_name(f"{fresh.name}{ASIDE}")
    folder.rename(aside)
    try:
        fresh.rename(folder)
    except BaseException:
        aside.rename(folder)
        raise
    return aside


def _swapped(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; False where the system or the file system cannot."""
    libc = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if sys.platform == "linux" and hasattr(libc, "renameat2"):
        return not libc.renameat2(AT_FDCWD, names[0], AT_FDCWD, names[1], RENAME_EXCHANGE)
    if sys.platform == "darwin" and hasattr(libc, "renamex_np"):
        return not libc.renamex_np(*names, RENAME_SWAP)
    return False
