"""Read which client holds which sample from a user's file: ``partition.path``."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.data.owners import Owners
from flnl.storage.csv_lines import UNNAMED, CsvLines, opened
from flnl.storage.written_names import WrittenNames

CLIENT, ID = "client", "id"
"""The columns of a CSV file with a header."""


def read_owners(path: Path, ids: Sequence[str]) -> Owners:
    """The owners that a file lists, in the order of the samples: one for each sample in ``ids`` if it names samples.

    A ``.npy`` file has one array of names or numbers. A ``.csv`` file has one client a line, or a header with a column
    ``client`` and, if the lines are in another order, a column ``id``; lines of other samples are left out. The client
    ``-1`` leaves a sample out.

    Args:
        path: the file.
        ids: the samples' names [N].

    Raises:
        UserError: if the file cannot be read, or names a sample twice or not at all.
    """
    if not path.is_file():
        raise UserError(f"partition.path={path}: no such file")
    if path.suffix not in (".npy", ".csv"):
        raise UserError(f"partition.path={path}: a .npy or .csv file is needed")
    try:
        return _owners_of(_of_array(path), path) if path.suffix == ".npy" else _of_lines(path, ids)
    except ValueError as error:
        raise UserError(f"partition.path={path}: {error}") from error


def _owners_of(array: NDArray[Any], path: Path) -> Owners:
    """The owners in an array [N] of names or whole numbers.

    Raises:
        ValueError: if it is no such array.
    """
    if array.ndim != 1 or array.dtype.kind not in "iuUS":
        raise ValueError(f"it holds {array.dtype} {list(array.shape)}; names or whole numbers [N] are needed")
    names = array.tolist()
    if array.dtype.kind == "S":
        names = [name.decode() for name in names]  # a UnicodeDecodeError is a ValueError
    return Owners.of(list(map(str, names)), f"partition.path={path}", leaves_out=True)


def _of_array(path: Path) -> NDArray[Any]:
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).partition("\n")[0].partition(" If you trust")[0]
        raise UserError(f"partition.path={path} cannot be read ({reason})") from error
    if not isinstance(array, np.ndarray):
        raise UserError(f"partition.path={path} is an archive of arrays: one .npy array of clients is needed")
    return array


def _of_lines(path: Path, ids: Sequence[str]) -> Owners:
    header, columns = _columns(path)
    if CLIENT not in header:  # no header: the first line is a client, too
        if len(header) != 1:
            raise ValueError("one client a line, or a header with client and id, is needed")
        (only,) = header
        return Owners.of([only, *columns[only]], f"partition.path={path}", leaves_out=True)
    index = [name for name in header[:1] if UNNAMED.fullmatch(name)]
    if index and columns[index[0]] != [str(i) for i in range(len(columns[index[0]]))]:
        raise ValueError(
            "the first column has no name and is not 0, 1, 2 ...; call it id if it names samples, or leave it out"
        )
    if others := [name for name in header if name not in (CLIENT, ID, *index)]:
        raise ValueError(
            f"it has a column {others[0]!r}, which is not read: samples are named in a column id, or stand in their "
            "order with client as the only column"
        )
    if ID not in header:
        return Owners.of(columns[CLIENT], f"partition.path={path}", leaves_out=True)
    known = WrittenNames(ids, below="train")
    line: dict[int, int] = {}
    for number, name in enumerate(columns[ID]):
        if (sample := known.find(name)) is not None and line.setdefault(sample, number) != number:
            raise ValueError(f"{name!r} is listed twice; every sample needs one line")
    if missing := [i for i in range(len(ids)) if i not in line]:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ValueError(f"no line for {ids[missing[0]]!r}{more}; every sample needs one line")
    return Owners.of([columns[CLIENT][line[i]] for i in range(len(ids))], f"partition.path={path}", leaves_out=True)


def _columns(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """The header, and the values below each of its names."""
    try:
        with opened(path) as file:
            lines = CsvLines(file, skipinitialspace=True)
            columns: dict[str, list[str]] = {name: [] for name in lines.header}
            for _, row in lines:
                for name, value in row.items():
                    columns[name].append(value)
    except (OSError, UnicodeError, csv.Error) as error:
        raise UserError(f"partition.path={path} cannot be read ({error}); it should be a CSV file") from error
    return lines.header, columns
