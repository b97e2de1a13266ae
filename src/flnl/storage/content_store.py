"""Content-addressed files for values that clients keep between visits and that do not fit into memory.

A file never changes, so its name always refers to the same value.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from flnl.core.errors import UserError
from flnl.storage.atomic import flush_names, writing

V = TypeVar("V")


@dataclass(frozen=True)
class ContentStore(Generic[V]):
    """A folder of values, each in a file named after the sha256 of its bytes."""

    folder: Path
    encode: Callable[[V], bytes]
    decode: Callable[[bytes], V]
    size: Callable[[V], int]  # bytes in memory

    def put(self, value: V) -> str:
        """Write a value atomically and return the name of its file; ``sync`` makes it durable.

        A file of this name that was cut short, as by a crash of the machine before ``sync``, is replaced.
        """
        data = self.encode(value)
        name = hashlib.sha256(data).hexdigest()
        path = self.folder / name
        if not _intact(path):
            self.folder.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f".{name}.{os.getpid()}")
            try:
                with writing(path):
                    beside.write_bytes(data)
                    beside.replace(path)
            finally:
                beside.unlink(missing_ok=True)
        return name

    def get(self, name: str) -> V:
        """The value in the file ``name``.

        Raises:
            UserError: if the file is missing or damaged.
        """
        path = self.folder / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}, the state of a client, cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != name:
            raise UserError(f"{path}, the state of a client, is damaged: start again in another folder")
        return self.decode(data)

    def sync(self, names: Iterable[str]) -> None:
        """Flush these files and their names to the disk."""
        for name in names:
            with (self.folder / name).open("rb") as file:
                os.fsync(file.fileno())
        if self.folder.is_dir():
            flush_names(self.folder)

    def keep_only(self, names: Collection[str]) -> None:
        """Delete all files except these."""
        for path in self.folder.glob("*"):
            if path.name not in names:
                path.unlink(missing_ok=True)


def _intact(path: Path) -> bool:
    """Whether there is a file at ``path`` with the content that its name says."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == path.name
    except OSError:
        return False
