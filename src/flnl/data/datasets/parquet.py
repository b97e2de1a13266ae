"""Parquet files: the columns of a sheet as text, as a CSV file has them, or features as arrays."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from flnl.console.extras import install
from flnl.core.errors import UserError
from flnl.core.special import refuse_special
from flnl.data.datasets.label_file import FROM_ROOT
from flnl.storage.csv_lines import UNNAMED
from flnl.storage.written_names import composed, in_order

if TYPE_CHECKING:
    import pyarrow as pa

SPLITS = ("train", "test")
ARRAYS = {"y_train": ("y", "train"), "y_test": ("y", "test")} | {
    name: (name, "train") for name in ("y_given", "owners", "clients", "ids")
}
"""From which column, and from the rows of which split, an array is."""


def is_parquet(path: Path) -> bool:
    """Whether the file is one by its name."""
    return path.suffix.lower() in (".parquet", ".pq")


def text_columns(path: Path, told: str) -> dict[str, list[str]]:
    """The values [N] of each column as text, "" where there is none; an index that pandas has written comes first.

    Raises:
        UserError: if the file cannot be read, or a column has other values than numbers and texts.
    """
    columns = _columns(path, told)
    for name, column in columns.items():
        if _is_nested_or_bytes(column):
            raise UserError(f"{told}: column {name!r} is {column.type}, and should be numbers or texts")
    names = sorted(columns, key=lambda name: not UNNAMED.fullmatch(name))
    return {name: ["" if one is None else str(one) for one in columns[name].to_pylist()] for name in names}


def feature_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of ``Features``, from a file with one row a sample.

    Its columns are ``split`` (train or test), ``x`` (a list of numbers), ``y`` (a whole number, or the name of a
    class), and those of ``y_given``, ``owners``, ``clients`` and ``ids`` that are known, of training samples.

    Raises:
        UserError: if the file cannot be read, or has other columns or values.
    """
    told = f"dataset.file: {path}"
    columns = _columns(path, told)
    for name in ("split", "x", "y"):
        if name not in columns:
            raise UserError(f"{told} has no column {name!r}, only {', '.join(columns)}")
    split = np.array([str(one) for one in columns["split"].to_pylist()])
    if strange := [one for one in split.tolist() if one not in SPLITS]:
        raise UserError(f"{told}: split {strange[0]!r} is neither train nor test")
    rows = {name: np.flatnonzero(split == name) for name in SPLITS}
    if empty := [name for name in SPLITS if not rows[name].size]:
        raise UserError(f"{told} has no rows of split {empty[0]}")
    x = _vectors(columns["x"], told)
    arrays = {f"x_{name}": x[rows[name]] for name in SPLITS}
    for array, (name, part) in ARRAYS.items():
        values = columns[name].take(rows[part]) if name in columns else None
        if values is None or values.null_count == len(values):
            continue
        if values.null_count:
            raise UserError(f"{told}: column {name} has values in some rows of split {part} alone")
        if _is_nested_or_bytes(values) or np.asarray(values.to_pylist()).dtype.kind not in "iuU":
            raise UserError(f"{told}: column {name} is {values.type}, and should be whole numbers or names")
        arrays[array] = np.asarray(values.to_pylist())
    if "y_test" not in arrays:
        raise UserError(f"{told}: column y has no values in rows of split test")
    return _numbered(arrays)


def _numbered(arrays: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
    """The arrays, with numbers and ``classes`` in place of labels that are names."""
    labels = {name: arrays[name] for name in ("y_train", "y_test", "y_given") if name in arrays}
    if not any(values.dtype.kind == "U" for values in labels.values()):
        return arrays
    written = {name: [composed(str(one)) for one in values.tolist()] for name, values in labels.items()}
    classes = in_order({one for names in written.values() for one in names})
    number = {name: i for i, name in enumerate(classes)}
    numbers = {name: np.array([number[one] for one in names]) for name, names in written.items()}
    return arrays | numbers | {"classes": np.array(classes)}


def _columns(path: Path, told: str) -> dict[str, pa.ChunkedArray]:
    """The columns by name, those of categories as their values.

    Raises:
        UserError: if pyarrow is not installed, or the file cannot be read.
    """
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ModuleNotFoundError:
        raise UserError(f"{told} is a parquet file, which needs pyarrow: {install('parquet')}") from None
    try:
        refuse_special(path)
        with path.open("rb") as file:
            table = parquet.read_table(file)
    except (OSError, ValueError, pa.ArrowException) as error:
        begins = FROM_ROOT if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"{told} cannot be read ({error}); it should be a parquet file{begins}") from error
    if twice := [name for name in table.column_names if table.column_names.count(name) > 1]:
        raise UserError(f"{told} has the column {twice[0]!r} twice")
    return {
        name: column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def _vectors(column: pa.ChunkedArray, told: str) -> NDArray[Any]:
    """Lists of numbers of one length as an array [N, D].

    Raises:
        UserError: if they are something else.
    """
    import pyarrow as pa
    from pyarrow import compute

    kind = column.type
    listed = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    if not listed or not (pa.types.is_integer(kind.value_type) or pa.types.is_floating(kind.value_type)):
        raise UserError(f"{told}: column x is {kind}, and should be lists of numbers")
    lengths = compute.list_value_length(column).to_pylist()
    for row, length in enumerate(lengths):
        if length is None:
            raise UserError(f"{told}: column x has nothing in row {row}")
        if length != lengths[0]:
            raise UserError(f"{told}: column x has {lengths[0]} numbers in row 0 and {length} in row {row}")
    values = compute.list_flatten(column)
    if values.null_count:
        raise UserError(f"{told}: column x has nothing for some of its numbers")
    return np.asarray(values.to_numpy()).reshape(len(lengths), lengths[0])


def _is_nested_or_bytes(column: pa.ChunkedArray) -> bool:
    import pyarrow as pa

    kind = column.type
    return bool(pa.types.is_nested(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind))
