"""Files of JSON lines that a run writes, and checksums by which later readers tell whether they are still the same.

The lines stay plain JSON. Their checksums stand in the run's checkpoints and in ``result.json``, and are taken while
the lines are written: no file is read again for them.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from flnl.core.errors import UserError
from flnl.storage.disk import writing

METRICS, CORRECTIONS = "metrics.jsonl", "corrections.jsonl"

CHECKSUMS = "lines"
"""Under this name ``result.json`` and checkpoints have the checksums of both files, by their names."""

Row = dict[str, Any]


class DamagedLinesError(UserError):
    """A file of lines is not what the run wrote; the message names the file, and the line where it can be told."""


@dataclass(frozen=True)
class Checksums:
    """What is known of the first lines of a file."""

    lines: int
    size: int  # of those lines in bytes, their ends included
    sha256: str  # of those bytes, 64 hex digits: this tells damage
    crc32: str  # of each line, its end included, 8 hex digits each: these tell its place

    @classmethod
    def read(cls, held: object) -> Self | None:
        """What a record or a checkpoint holds of a file; None where it holds nothing that can be read."""
        if not isinstance(held, Mapping) or held.keys() != {f.name for f in fields(cls)}:
            return None
        found = cls(**held)
        numbers = all(type(n) is int and n >= 0 for n in (found.lines, found.size))
        return found if numbers and isinstance(found.sha256, str) and isinstance(found.crc32, str) else None

    def demand(self, path: Path, data: bytes, *, whole: bool) -> bytes:
        """The bytes of these lines, given all of the file's ``data``; ``whole``: nothing may come after them.

        Raises:
            DamagedLinesError: if they are not what was written.
        """
        kept = data[: self.size]
        if len(kept) != self.size or hashlib.sha256(kept).hexdigest() != self.sha256:
            raise DamagedLinesError(self._difference(path, data))
        if whole and len(data) > self.size:
            raise DamagedLinesError(f"line {self.lines + 1} of {path} is not the run's, which wrote {self.lines} lines")
        return kept

    def _difference(self, path: Path, data: bytes) -> str:
        """Where the file first departs from what was written."""
        if not path.exists():
            return f"{path} is missing"
        found = _split(data)
        for number in range(self.lines):
            if number >= len(found):
                return f"{path} ends after line {number} of {self.lines}"
            if f"{zlib.crc32(found[number]):08x}" != self.crc32[8 * number : 8 * number + 8]:
                return f"line {number + 1} of {path} is not what the run wrote"
        return f"one of the first {self.lines} lines of {path} is not what the run wrote"


class Lines:
    """A file of JSON lines that is being written, each line flushed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines, self._bytes = 0, 0
        self._sha256, self._crc32 = hashlib.sha256(), bytearray()

    def go_on_after(self, rounds: int, known: Checksums | None) -> list[Row]:
        """Go on after the lines that a checkpoint at ``rounds`` knows, and give them; ``cut`` takes away what follows.

        Checkpoints that were written without checksums know the lines by their rounds alone.

        Raises:
            DamagedLinesError: if they are not what was written.
        """
        data = self.path.read_bytes() if self.path.exists() else b""
        data = _until(rounds, self.path, data) if known is None else known.demand(self.path, data, whole=False)
        lines = _split(data)
        for line in lines:
            self._count(line)
        return [json.loads(line) for line in lines]

    def cut(self) -> None:
        """Take away what is in the file beyond the lines that it goes on after: later rounds, half a line."""
        with writing(self.path), self.path.open("ab") as file:
            file.truncate(self._bytes)

    def write(self, row: Mapping[str, Any]) -> None:
        """Append one line."""
        line = (json.dumps(plain(row), allow_nan=False) + "\n").encode()
        with writing(self.path), self.path.open("ab") as file:
            file.write(line)
        self._count(line)

    def _count(self, line: bytes) -> None:
        self._lines, self._bytes = self._lines + 1, self._bytes + len(line)
        self._sha256.update(line)
        self._crc32 += zlib.crc32(line).to_bytes(4, "big")

    def sync(self) -> None:
        """Have the system put all lines on the disk: a checkpoint must not know more than they do."""
        if self.path.exists():
            with writing(self.path), self.path.open("ab") as file:
                os.fsync(file.fileno())

    @property
    def checksums(self) -> Checksums:
        """Of the lines so far."""
        return Checksums(self._lines, self._bytes, self._sha256.hexdigest(), self._crc32.hex())


def described(files: Sequence[Lines]) -> dict[str, Any]:
    """The checksums of files as checkpoints and records hold them."""
    return {file.path.name: asdict(file.checksums) for file in files}


def read(folder: Path, name: str, record: Mapping[str, Any]) -> bytes:
    """The bytes of a file of lines in a run's ``folder``, checked against the run's ``record``; b"" of one not there.

    A finished run has nothing in it but what the record knows. One that was killed may have more, which is not checked,
    and a run that recorded no checksums is not checked at all.

    Raises:
        OSError: if it cannot be read.
        DamagedLinesError: if it is not what the run wrote.
    """
    path = folder / name
    data = path.read_bytes() if path.exists() else b""
    if CHECKSUMS not in record:
        return data
    held = record[CHECKSUMS]
    known = Checksums.read(held.get(name) if isinstance(held, Mapping) else None)
    if known is None:
        raise DamagedLinesError(f"{path} cannot be checked: what the run's record knows of it cannot be read")
    known.demand(path, data, whole=record.get("status") == "finished")
    return data


def damage(folder: Path, record: Mapping[str, Any]) -> str | None:
    """What is wrong with the lines of a run, in a phrase that names file and line; None where nothing is.

    A file that is not there says nothing wrong: somebody may have kept the record alone.
    """
    try:
        for name in (METRICS, CORRECTIONS):
            if (folder / name).exists():
                read(folder, name, record)
    except (OSError, DamagedLinesError) as error:
        return str(error)
    return None


def parsed(line: bytes) -> Row | None:
    """The object of a line; None where it is none."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def plain(value: Any) -> Any:
    """JSON has no NaN: what is not finite becomes null."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def _split(data: bytes) -> list[bytes]:
    """Lines with their ends; the last may have none."""
    *lines, rest = data.split(b"\n")
    return [*(line + b"\n" for line in lines), *([rest] if rest else [])]


def _until(rounds: int, path: Path, data: bytes) -> bytes:
    """The lines of the first ``rounds``; a last line that was not written to its end is none.

    Raises:
        DamagedLinesError: for any other line that is no JSON object.
    """
    kept = []
    for number, line in enumerate(_split(data), 1):
        if not line.endswith(b"\n"):
            break
        row = parsed(line)
        if row is None:
            raise DamagedLinesError(f"line {number} of {path} is not what the run wrote")
        if row.get("round", 0) > rounds:
            break
        kept.append(line)
    return b"".join(kept)
