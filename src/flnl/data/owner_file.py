"""Read which client holds which sample from a user's file: ``partition.path``."""

import csv
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import Indices
from flnl.storage.csv_lines import CsvLines
from flnl.storage.spreadsheet import name_of

CLIENT, ID = "client", "id"
"""The columns of a CSV file with a header."""


def read_owners(path: Path, ids: Sequence[str]) -> Indices:
    """The owners that a file lists, in the order of the samples: one for each sample in ``ids`` if it names samples.

    A ``.npy`` file has one array of integers. A ``.csv`` file has one integer a line, or a header with a column
    ``client`` and, if the lines are in another order, a column ``id``; lines of other samples are left out.

    Args:
        path: the file.
        ids: the samples' names [N].

    Raises:
        UserError: if the file cannot be read, or names a sample twice or not at all.
    """
    if not path.is_file():
        raise UserError(f"partition.path={path}: no such file")
    if path.suffix == ".npy":
        return _of_array(path)
    if path.suffix == ".csv":
        return _of_lines(path, ids)
    raise UserError(f"partition.path={path}: a .npy or .csv file is needed")


def _of_array(path: Path) -> Indices:
    try:
        owner = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).partition("\n")[0].partition(" If you trust")[0]
        raise UserError(f"partition.path={path} cannot be read ({reason})") from error
    if not isinstance(owner, np.ndarray):
        raise UserError(f"partition.path={path} is an archive of arrays: one .npy array of integers is needed")
    if owner.ndim != 1 or not np.issubdtype(owner.dtype, np.integer):
        raise UserError(f"partition.path={path} holds {owner.dtype} {list(owner.shape)}: integers [N] are needed")
    return np.asarray(owner, np.int64)


def _of_lines(path: Path, ids: Sequence[str]) -> Indices:
    header, columns = _columns(path)
    try:
        if CLIENT not in header:  # no header: the first line is a client, too
            (only,) = header
            return np.array([int(client) for client in (only, *columns[only])], np.int64)
        owner = np.array([int(client) for client in columns[CLIENT]], np.int64)
    except (ValueError, OverflowError) as error:
        raise UserError(
            f"partition.path={path}: {error}; one integer a line, or a header with client and id, is needed"
        ) from error
    if others := [name for name in header if name not in (CLIENT, ID)]:
        raise UserError(
            f"partition.path={path} has a column {others[0]!r}, which is not read: samples are named in a column id, "
            "or stand in their order with client as the only column"
        )
    if ID not in header:
        return owner
    known = set(ids)
    named = [name_of(name, known) for name in columns[ID]]
    where = {name: line for line, name in enumerate(named)}
    missing = [name for name in ids if name not in where]
    if missing or len(where) != len(named):
        wrong = f"no line for {missing[0]!r} and {len(missing) - 1} more" if missing else "an id is listed twice"
        raise UserError(f"partition.path={path}: {wrong}; every sample needs one line")
    return owner[[where[name] for name in ids]]


def _columns(path: Path) -> tuple[list[str], dict[str, list[str]]]:
    """The header, and the values below each of its names."""
    try:
        with path.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:  # ids may be any bytes
            lines = CsvLines(file, skipinitialspace=True)
            columns: dict[str, list[str]] = {name: [] for name in lines.header}
            for _, row in lines:
                for name, value in row.items():
                    columns[name].append(value)
    except (OSError, csv.Error) as error:
        raise UserError(f"partition.path={path} cannot be read ({error}); it should be a CSV file") from error
    except ValueError as error:  # a line of another length
        raise UserError(f"partition.path={path}: {error}") from error
    return lines.header, columns
