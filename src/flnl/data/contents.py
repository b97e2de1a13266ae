"""What is in files, many of them, as a sha256 each: read by threads, shown on the way, and remembered.

A file is read once: where path, size and time of change are those that are remembered, so is its sha256.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
import stat
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from flnl.core.errors import UserError
from flnl.core.terminal import print_line

log = logging.getLogger(__name__)

FILE = "contents.sqlite"
THREADS = 16
"""They hide the latency of a network disk; hashing lets go of the interpreter."""
BLOCK = 500
"""Files that are looked up, read and remembered together; whoever is stopped has lost no more."""
SETTLED = 2 * 10**9
"""Nanoseconds since its last change after which a file's next change is sure to have another time."""
MANY, LARGE = 2_000, 500 * 10**6
"""Files and bytes to read from which on progress is shown."""
QUIET_SECONDS = 30.0

Digests = NDArray[np.uint8]


def digests(root: Path, paths: Sequence[str], cache: Path | None) -> Digests:
    """The sha256 of each file below ``root`` as bytes [N, 32]; zeros for what is no regular file.

    ``cache`` is the folder where they are remembered; what cannot be kept there is read again the next time.

    Raises:
        UserError: if a file cannot be read.
    """
    found = np.zeros((len(paths), 32), np.uint8)
    if not len(paths):
        return found
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
                    found[i] = np.frombuffer(digest, np.uint8)
                elif states[i, 2]:
                    unknown.append(i)
        with _progress(len(unknown), int(states[unknown, 0].sum()), root) as advance:
            for start in range(0, len(unknown), BLOCK):
                chosen = unknown[start : start + BLOCK]
                for i, digest in zip(chosen, threads.map(_sha256, [files[i] for i in chosen]), strict=True):
                    found[i] = np.frombuffer(digest, np.uint8)
                    advance()
                settled = time.time_ns() - SETTLED
                memory.remember(
                    (files[i], *states[i, :2].tolist(), found[i].tobytes()) for i in chosen if states[i, 1] < settled
                )
    return found


_File = str
"""A path as the system takes it."""


def _blocks(files: Sequence[_File]) -> list[Sequence[_File]]:
    return [files[start : start + BLOCK] for start in range(0, len(files), BLOCK)]


def _states(files: Sequence[_File]) -> NDArray[np.int64]:
    """Size in bytes, time of the last change in nanoseconds, and whether it is a regular file [n, 3]."""
    found = np.zeros((len(files), 3), np.int64)
    for i, file in enumerate(files):
        try:
            state = os.stat(file)  # noqa: PTH116
        except OSError as error:
            raise _unreadable(file, error) from error
        found[i] = state.st_size, state.st_mtime_ns, stat.S_ISREG(state.st_mode)
    return found


def _sha256(file: _File) -> bytes:
    try:
        with open(file, "rb") as opened:  # noqa: PTH123
            return hashlib.file_digest(opened, "sha256").digest()
    except OSError as error:
        raise _unreadable(file, error) from error


def _unreadable(file: _File, error: OSError) -> UserError:
    return UserError(
        f"dataset.root: {file} cannot be read ({error.strerror}), so what is in it cannot be told; see to it, or set "
        "dataset.fingerprint=names"
    )


# ------------------------------------------------------------------------------------------------------- remembering

Kept = tuple[_File, int, int, bytes]
"""A file, its size in bytes, its time of change in nanoseconds, and its sha256."""


@dataclass
class _Memory:
    """A table of files, as far as there is one: what goes wrong with it is said once and costs time alone."""

    database: sqlite3.Connection | None
    path: Path | None

    def recall(self, files: Sequence[_File]) -> dict[_File, tuple[int, int, bytes]]:
        """What is known of some of these files."""
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
        """Write down what was read."""
        if self.database is None:
            return
        rows = [(os.fsencode(file), *rest) for file, *rest in kept]
        try:
            with self.database:
                self.database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?, ?, ?)", rows)
        except sqlite3.Error as error:
            self.give_up(error)

    def give_up(self, error: Exception) -> None:
        """Go on without it."""
        log.warning("what is in the files of a data set cannot be kept in %s (%s): it is read anew", self.path, error)
        if self.database is not None:
            self.database.close()
        self.database = None


@contextmanager
def _memory(cache: Path | None) -> Iterator[_Memory]:
    found = _Memory(None, None if cache is None else cache / FILE)
    if cache is not None:
        try:
            cache.mkdir(parents=True, exist_ok=True)
            found.database = sqlite3.connect(cache / FILE, timeout=30.0)
            columns = "path BLOB PRIMARY KEY, size INTEGER, changed INTEGER, sha256 BLOB"
            with found.database:
                found.database.execute(f"CREATE TABLE IF NOT EXISTS files ({columns})")
        except (OSError, sqlite3.Error) as error:
            found.give_up(error)
    try:
        yield found
    finally:
        if found.database is not None:
            found.database.close()


# ---------------------------------------------------------------------------------------------------------- progress


@contextmanager
def _progress(files: int, size: int, root: Path) -> Iterator[Callable[[], None]]:
    """While so many files of ``size`` bytes in all are read; what is given is called after each. Few are not shown."""
    if files < MANY and size < LARGE:
        yield lambda: None
        return
    console = Console(stderr=True)
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("reading files once", total=files)
            yield lambda: bar.advance(task)
        return
    what = f"{files:,} files below {root} ({decimal(size)})"
    print_line(f"reading {what} once, to tell them from others; dataset.fingerprint=names does not", to=sys.stderr)
    done, said = 0, time.monotonic()

    def advance() -> None:
        nonlocal done, said
        done += 1
        if time.monotonic() - said > QUIET_SECONDS:
            said = time.monotonic()
            print_line(f"read {done:,} of {what}", to=sys.stderr)

    yield advance
