"""The JSON-lines files of a run, and checksums with which readers detect changes.

The lines are plain JSON. Their checksums are in the run's checkpoints and in ``result.json``; they are computed while
the lines are written, so no file is read again for them.
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
from flnl.storage.atomic import writing
from flnl.storage.input_file import parse_json

METRICS, CORRECTIONS = "metrics.jsonl", "corrections.jsonl"

UNKNOWN: Any = object()
"""Instead of checksums: the run has none."""

Row = dict[str, Any]


class DamagedLinesError(UserError):
    """A file differs from what the run wrote; the message names the file, and the line if it is known."""


@dataclass(frozen=True)
class Checksums:
    """Checksums of the first lines of a file."""

    lines: int
    size: int  # of these lines in bytes, including line ends
    sha256: str  # of these bytes, 64 hex digits: detects damage
    crc32: str  # of each line including its end, 8 hex digits each: locate the damage

    @classmethod
    def read(cls, held: object) -> Self | None:
        """Parse the checksums of a file from a record or checkpoint; None if they are invalid."""
        if not isinstance(held, Mapping) or held.keys() != {f.name for f in fields(cls)}:
            return None
        parsed = cls(**held)
        numbers = all(type(n) is int and n >= 0 for n in (parsed.lines, parsed.size))
        return parsed if numbers and isinstance(parsed.sha256, str) and isinstance(parsed.crc32, str) else None

    def demand(self, path: Path, data: bytes, *, whole: bool) -> bytes:
        """Verify a file against these checksums.

        Args:
            path: the file, for messages.
            data: its content.
            whole: whether the file must have no further lines.

        Returns:
            The bytes of the verified lines.

        Raises:
            DamagedLinesError: if they differ from what was written.
        """
        kept = data[: self.size]
        if len(kept) != self.size or hashlib.sha256(kept).hexdigest() != self.sha256:
            raise DamagedLinesError(self._difference(path, data))
        if whole and len(data) > self.size:
            raise DamagedLinesError(f"line {self.lines + 1} of {path} is not the run's, which wrote {self.lines} lines")
        return kept

    def _difference(self, path: Path, data: bytes) -> str:
        """A message that locates the first difference from what was written."""
        if not path.exists():
            return f"{path} is missing"
        lines = _split(data)
        for number in range(self.lines):
            if number >= len(lines):
                return f"{path} ends after line {number} of {self.lines}"
            if f"{zlib.crc32(lines[number]):08x}" != self.crc32[8 * number : 8 * number + 8]:
                return f"line {number + 1} of {path} is not what the run wrote"
        return f"one of the first {self.lines} lines of {path} is not what the run wrote"


class Lines:
    """A JSON-lines file that is being written; each line is flushed."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lines, self._bytes = 0, 0
        self._sha256, self._crc32 = hashlib.sha256(), bytearray()

    def go_on_after(self, rounds: int, known: Checksums | None) -> list[Row]:
        """Continue after the lines that a checkpoint covers; ``cut`` removes the lines that follow.

        Args:
            rounds: the round of the checkpoint.
            known: its checksums; None for checkpoints without checksums, whose lines are identified by their rounds.

        Returns:
            The rows of the covered lines.

        Raises:
            DamagedLinesError: if they differ from what was written.
        """
        data = self.path.read_bytes() if self.path.exists() else b""
        data = _until(rounds, self.path, data) if known is None else known.demand(self.path, data, whole=False)
        lines = _split(data)
        for line in lines:
            self._count(line)
        return [parse_json(line) for line in lines]

    def cut(self) -> None:
        """Remove what follows the lines after which the file continues: later rounds, or an incomplete line."""
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
        """Flush all lines to the disk, before a checkpoint refers to them."""
        if self.path.exists():
            with writing(self.path), self.path.open("ab") as file:
                os.fsync(file.fileno())

    @property
    def checksums(self) -> Checksums:
        """The checksums of the lines so far."""
        return Checksums(self._lines, self._bytes, self._sha256.hexdigest(), self._crc32.hex())


def described(files: Sequence[Lines]) -> dict[str, Any]:
    """The checksums of ``files`` by name, for checkpoints and records."""
    return {file.path.name: asdict(file.checksums) for file in files}


def read(path: Path, held: object, *, whole: bool) -> bytes:
    """Read a JSON-lines file of a run; b"" if it does not exist.

    Args:
        path: the file.
        held: the checksums of the run's files, by name; ``UNKNOWN`` for a run without, which is not verified.
        whole: whether the file must have no lines beside those.

    Raises:
        OSError: if the file cannot be read.
        DamagedLinesError: if it differs from what the run wrote.
    """
    data = path.read_bytes() if path.exists() else b""
    if held is UNKNOWN:
        return data
    known = Checksums.read(held.get(path.name) if isinstance(held, Mapping) else None)
    if known is None:
        raise DamagedLinesError(f"{path} cannot be checked: its checksums in the run's record are invalid")
    known.demand(path, data, whole=whole)
    return data


def whole_rows(data: bytes) -> list[Row]:
    """The rows of a file's content, up to an incomplete line."""
    found = []
    for line in data.splitlines():
        if (row := parsed(line)) is None:
            break
        found.append(row)
    return found


def parsed(line: bytes) -> Row | None:
    """Parse a line; None if it is not a JSON object."""
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def plain(value: Any) -> Any:
    """Replace non-finite numbers by None, since JSON has no NaN or infinity."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(k): plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    return value


def _split(data: bytes) -> list[bytes]:
    """Split into lines with their ends; the last may have none."""
    *lines, rest = data.split(b"\n")
    return [*(line + b"\n" for line in lines), *([rest] if rest else [])]


def _until(rounds: int, path: Path, data: bytes) -> bytes:
    """The lines of the first ``rounds``, without an incomplete last line.

    Raises:
        DamagedLinesError: if any other line is not a JSON object.
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
