"""Probabilities of all samples, read in blocks, so that memory does not grow with their number."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.core.images import Indices

Array = NDArray[np.float64]

ROWS = 100_000
"""Most samples in a block."""
VALUES = 4_000_000
"""Most probabilities in a block, which has at least one sample."""


class ProbabilityTable(Protocol):
    """Probabilities [N, K] of all samples."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""

    def blocks(self) -> Iterator[Array]:
        """Consecutive rows as float64 [n, K]."""


@dataclass(frozen=True, eq=False)
class InMemory:
    """Probabilities that are in memory."""

    values: NDArray[np.floating]  # [N, K]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, K)."""
        samples, classes = self.values.shape
        return samples, classes

    def blocks(self) -> Iterator[Array]:
        """Consecutive rows."""
        rows = rows_of_block(self.shape[1])
        for start in range(0, len(self.values), rows):
            yield self.values[start : start + rows].astype(np.float64)


@dataclass(frozen=True)
class InFile:
    """An array of an ``npz`` file, whose rows are read as they are needed. Nothing in the file is executed."""

    path: Path
    name: str  # of the array
    shape: tuple[int, int]  # (N, K)

    @classmethod
    def open(cls, path: Path, name: str) -> InFile | InMemory:
        """The array ``name`` [N, K].

        Raises:
            UserError: if there is no such array of numbers in the file.
        """
        with _readable(path), zipfile.ZipFile(path) as archive, archive.open(f"{name}.npy") as file:
            shape, by_columns, dtype = _header(file)
            if dtype.kind != "f" or len(shape) != 2:
                raise UserError(f"{path}: {name} is {dtype} {list(shape)}; it should be float [samples, classes]")
            if by_columns:
                return InMemory(cast("NDArray[np.floating]", read_arrays(path, (name,))[name]))
            return cls(path, name, (shape[0], shape[1]))

    def blocks(self) -> Iterator[Array]:
        """Consecutive rows.

        Raises:
            UserError: if the file is damaged.
        """
        rows, (samples, classes) = rows_of_block(self.shape[1]), self.shape
        with _readable(self.path), zipfile.ZipFile(self.path) as archive, archive.open(f"{self.name}.npy") as file:
            _, _, dtype = _header(file)
            for start in range(0, samples, rows):
                count = min(rows, samples - start)
                data = file.read(count * classes * dtype.itemsize)
                if len(data) < count * classes * dtype.itemsize:
                    raise ValueError(f"{self.name} ends early")
                yield np.frombuffer(data, dtype).reshape(count, classes).astype(np.float64)
            file.read()  # to the end, where the checksum is


def read_arrays(path: Path, names: tuple[str, ...]) -> dict[str, NDArray[np.generic]]:
    """The arrays of an ``npz`` file with these names, as far as it has them.

    Raises:
        UserError: if it cannot be read without running code.
    """
    with _readable(path):
        if not zipfile.is_zipfile(path):
            raise ValueError("it is no archive")
        with np.load(path, allow_pickle=False) as held:
            return {name: held[name] for name in names if name in held.files}


def rows_of_block(classes: int) -> int:
    """Samples in a block."""
    return max(1, min(ROWS, VALUES // max(classes, 1)))


def rows_at(table: ProbabilityTable, index: Indices) -> Array:
    """The rows [n, K] at ``index`` [n], in one pass."""
    rows = np.empty((len(index), table.shape[1]))
    order = np.argsort(index, kind="stable")
    wanted, start = index[order], 0
    for block in table.blocks():
        first, last = np.searchsorted(wanted, [start, start + len(block)])
        rows[order[first:last]] = block[wanted[first:last] - start]
        start += len(block)
    return rows


def _header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[np.generic]]:
    """Shape, whether columns are stored one after another, and type."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, by_columns, dtype = read(file)
    return shape, by_columns, dtype


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Raise faults of the file at ``path`` as errors of the user."""
    try:
        if not path.is_file():
            raise UserError(f"{path} does not exist, or is no regular file")
        yield
    except KeyError as error:
        raise UserError(f"{path} lacks an array ({error.args[0]})") from error
    except (OSError, ValueError, EOFError, MemoryError, zipfile.BadZipFile, zlib.error) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise UserError(f"{path} cannot be read ({reason}); it should be an npz file of plain arrays") from error
