"""A mapping that holds as much as a limit allows in memory and puts the rest on disk: what clients keep between visits.

A value like the rest of the state: an update gives another mapping and leaves this one as it was. A file is named by
its content and never changes, so any mapping that names it stays good while the file is there.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Generic, TypeVar

from src.disk import writing
from src.errors import UserError

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


@dataclass(frozen=True)
class Shelved(Mapping[int, V]):
    """Values by client. Those that were written longest ago leave the memory first.

    Args:
        held: those in memory, in the order in which they were written.
        files: names of the files of the others.
        limit: bytes that may be held.
        shelf: where the others go; None holds all.
        size: bytes that are held.
    """

    held: Mapping[int, V] = field(default_factory=dict)
    files: Mapping[int, str] = field(default_factory=dict)
    limit: float = float("inf")
    shelf: Shelf[V] | None = None
    size: int = 0

    def __getitem__(self, client: int) -> V:
        if client in self.held:
            return self.held[client]
        name = self.files[client]
        assert self.shelf is not None, "what is in files has a shelf"
        return self.shelf.get(name)

    def __contains__(self, client: object) -> bool:
        return client in self.held or client in self.files

    def __iter__(self) -> Iterator[int]:
        yield from sorted({*self.held, *self.files})

    def __len__(self) -> int:
        return len(self.held) + len(self.files)

    def on(self, shelf: Shelf[V], limit: float) -> Shelved[V]:
        """The same values, with ``limit`` bytes of them in memory and the others on ``shelf``."""
        size = sum(map(shelf.size, self.held.values()))
        return replace(self, shelf=shelf, limit=limit, size=size).updated({})

    def updated(self, values: Mapping[int, V], without: Collection[int] = ()) -> Shelved[V]:
        """With ``values`` in the place of what their clients had, and nothing of the clients ``without``."""
        gone = {*values, *without}
        held = dict(self.held)
        was = [held.pop(client) for client in gone if client in held]
        files = {c: name for c, name in self.files.items() if c not in gone} if self.files else {}
        held.update(values)
        if self.shelf is None:
            return replace(self, held=held, files=files)
        size = self.size + sum(map(self.shelf.size, values.values())) - sum(map(self.shelf.size, was))
        for client in list(held) if size > self.limit else ():
            value = held.pop(client)
            size -= self.shelf.size(value)
            files[client] = self.shelf.put(value)
            if size <= self.limit:
                break
        return replace(self, held=held, files=files, size=size)
