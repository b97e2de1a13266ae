"""Values in files that are named by their content: what clients keep between visits and memory does not hold.

A file never changes, so whoever has its name reads the same value as long as it is there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from flnl.core.errors import UserError
from flnl.storage.disk import writing

V = TypeVar("V")


@dataclass(frozen=True)
class Shelf(Generic[V]):
    """A folder of values, each in a file named by the sha256 of its bytes."""

    folder: Path
    encode: Callable[[V], bytes]
    decode: Callable[[bytes], V]
    size: Callable[[V], int]  # bytes in memory

    def put(self, value: V) -> str:
        """Write a value; gives the name of its file. Whole at once, on the disk for good after ``sync``."""
        data = self.encode(value)
        name = hashlib.sha256(data).hexdigest()
        path = self.folder / name
        if not path.exists():
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
            UserError: if it is gone or damaged.
        """
        path = self.folder / name
        try:
            data = path.read_bytes()
        except OSError as error:
            raise UserError(f"{path}, which a client keeps, cannot be read: {error.strerror}") from None
        if hashlib.sha256(data).hexdigest() != name:
            raise UserError(f"{path}, which a client keeps, is damaged: start afresh in another folder")
        return self.decode(data)

    def sync(self, names: Iterable[str]) -> None:
        """Have the system put these files on the disk."""
        for name in names:
            with (self.folder / name).open("rb") as file:
                os.fsync(file.fileno())

    def keep_only(self, names: Collection[str]) -> None:
        """Delete every file that is not named."""
        for path in self.folder.glob("*"):
            if path.name not in names:
                path.unlink(missing_ok=True)
