"""The sha256 of many files: computed by threads, with progress messages, and cached.

A cached digest is used if the file's path, size and modification time are unchanged, so a file is read only once.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.filesize import decimal

from flnl.console.counting import counting
from flnl.core.errors import UserError

log = logging.getLogger(__name__)

FILE = "contents.sqlite"
THREADS = 16
"""Threads hide the latency of a network disk; hashing releases the GIL."""
BLOCK = 500
"""Files that are looked up, read and cached together: the most that an interrupted run has to repeat."""
SETTLED = 2 * 10**9
"""Nanoseconds after a file's last change beyond which another change surely gets a different modification time."""
MANY, LARGE = 2_000, 500 * 10**6
"""Progress is shown from this many files or bytes to read."""

Digests = NDArray[np.uint8]


def digests(root: Path, paths: Sequence[str], cache: Path | None) -> Digests:
    """The sha256 of each file as bytes [N, 32]; zeros for paths that are not regular files.

    Args:
        root: the folder of the files.
        paths: the files, relative to ``root``.
        cache: the folder of the cache; if it cannot be written, the files are read again next time.

    Raises:
        UserError: if a file cannot be read.
    """
    hashes = np.zeros((len(paths), 32), np.uint8)
    if not len(paths):
        return hashes
    with ThreadPoolExecutor(THREADS, thread_name_prefix="contents") as threads, _memory(cache) as memory:
        base = os.fspath(root)
        files = [_File(os.path.join(base, path)) for path in paths]  # noqa: PTH118 - a million Path objects are slow
        states = np.concatenate(list(threads.map(_states, _blocks(files))))  # [N, 3]
        unknown: list[int] = []
        for start in range(0, len(files), BLOCK):
            block = range(start, min(start + BLOCK, len(files)))
            kept = memory.recall([files[i] for i in block])
            for i in block:
                size, changed, digest = kept.get(files[i], (-1, -1, b""))
                if (size, changed) == (states[i, 0], states[i, 1]) and len(digest) == 32:
                    hashes[i] = np.frombuffer(digest, np.uint8)
                elif states[i, 2]:
                    unknown.append(i)
        with _progress(len(unknown), int(states[unknown, 0].sum()), root) as advance:
            for start in range(0, len(unknown), BLOCK):
                chosen = unknown[start : start + BLOCK]
                for i, digest in zip(chosen, threads.map(_sha256, [files[i] for i in chosen]), strict=True):
                    hashes[i] = np.frombuffer(digest, np.uint8)
                    advance()
                settled = time.time_ns() - SETTLED
                memory.remember(
                    (files[i], *states[i, :2].tolist(), hashes[i].tobytes()) for i in chosen if states[i, 1] < settled
                )
    return hashes


_File = str
"""A path as text; a million ``Path`` objects would be slow."""


def _blocks(files: Sequence[_File]) -> list[Sequence[_File]]:
    return [files[start : start + BLOCK] for start in range(0, len(files), BLOCK)]


def _states(files: Sequence[_File]) -> NDArray[np.int64]:
    """Size in bytes, modification time in nanoseconds, and whether it is a regular file; shape [n, 3]."""
    states = np.zeros((len(files), 3), np.int64)
    for i, file in enumerate(files):
        try:
            state = os.stat(file)  # noqa: PTH116
        except OSError as error:
            raise _unreadable(file, error) from error
        states[i] = state.st_size, state.st_mtime_ns, stat.S_ISREG(state.st_mode)
    return states


def _sha256(file: _File) -> bytes:
    try:
        with open(file, "rb") as opened:  # noqa: PTH123
            return hashlib.file_digest(opened, "sha256").digest()
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: _File, error: OSError) -> UserError:
    return UserError(
        f"dataset.root: {file} cannot be read ({error.strerror}), so its content cannot be checked; make it readable, "
        "or set dataset.fingerprint=names"
    )


# ------------------------------------------------------------------------------------------------------------ cache

Kept = tuple[_File, int, int, bytes]
"""A file, its size in bytes, its modification time in nanoseconds, and its sha256."""


@dataclass
class _Memory:
    """The database of digests, or none: if it fails, a warning is logged once and the files are read again."""

    database: sqlite3.Connection | None
    path: Path | None

    def recall(self, files: Sequence[_File]) -> dict[_File, tuple[int, int, bytes]]:
        """The cached entries of ``files``: size, modification time and sha256."""
        if self.database is None:
            return {}
        query = f"SELECT path, size, changed, sha256 FROM files WHERE path IN ({','.join('?' * len(files))})"
        try:
            rows = self.database.execute(query, [os.fsencode(file) for file in files]).fetchall()
        except sqlite3.Error as error:
            self.give_up(error)
            return {}
        return {os.fsdecode(path): (size, changed, digest) for path, size, changed, digest in rows}

    def remember(self, kept: Iterator[Kept]) -> None:
        """Store new entries."""
        if self.database is None:
            return
        rows = [(os.fsencode(file), *rest) for file, *rest in kept]
        try:
            with self.database:
                self.database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Continue without the database."""
        log.warning("digests of data files cannot be cached in %s (%s): the files are read again", self.path, error)
        if self.database is not None:
            self.database.close()
        self.database = None


@contextmanager
def _memory(cache: Path | None) -> Iterator[_Memory]:
    memory = _Memory(None, None if cache is None else cache / FILE)
    if cache is not None:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            memory.database = sqlite3.connect(cache / FILE, timeout=30.0)
            columns = "path BLOB PRIMARY KEY, size INTEGER, changed INTEGER, sha256 BLOB"
            with memory.database:
                memory.database.execute(f"CREATE TABLE IF NOT EXISTS files ({columns})")
        except (OSError, sqlite3.Error) as error:
            memory.give_up(error)
    try:
        yield memory
    finally:
        if memory.database is not None:
            memory.database.close()


# ---------------------------------------------------------------------------------------------------------- progress


@contextmanager
def _progress(files: int, size: int, root: Path) -> Iterator[Callable[[], None]]:
    """Show progress while files are read, unless there are few.

    Args:
        files: number of files to read.
        size: their total size in bytes.
        root: their folder.

    Yields:
        A function to call after each file.
    """
    if files < MANY and size < LARGE:
        yield lambda: None
        return
    what = f"{files:,} files below {root} ({decimal(size)})"
    with counting(
        files,
        bar="reading files once",
        begins=f"reading {what} once, to identify their content; dataset.fingerprint=names skips this",
        after=lambda done: f"read {done:,} of {what}",
    ) as advance:
        yield lambda: advance(1)
