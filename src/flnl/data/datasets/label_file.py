"""Labels that a user brings in a CSV file: what was given, and if known what is true and whose the sample is.

Every sample has exactly one line; whatever does not fit is an error that names the line.
"""

import csv
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels
from flnl.storage.spreadsheet import text_of


@dataclass(frozen=True)
class LabelFile:
    """The columns of a label file, in the order of the samples."""

    given: Labels  # [N]
    true: Labels | None  # [N]
    clients: Indices | None  # [N]


def read_label_file(path: Path, column: str, samples: Sequence[str], classes: Sequence[str]) -> LabelFile:
    """A CSV file with a header: ``column`` (the sample), ``label``, and if there ``true`` and ``client``.

    A label is the name of a class, or its number where no class is named by a number. Clients are numbered as by
    ``number_clients``. A sample or label that begins like a formula may have a mark before it, as in a run's
    ``labels.csv`` (see ``flnl.storage.spreadsheet``).

    Raises:
        UserError: if the file cannot be read, or a sample is unknown, named twice or missing, or a label is no class.
    """
    rows = _rows(path, column)
    position = {sample: i for i, sample in enumerate(samples)}
    numbers = {name: i for i, name in enumerate(classes)}
    if not any(name.isdecimal() for name in classes):
        numbers |= {str(i): i for i in range(len(classes))}

    line = dict.fromkeys(samples, 0)  # where each sample is named
    columns: dict[str, list[int]] = {name: [0] * len(samples) for name in ("label", "true") if name in rows[0]}
    owners = [""] * len(samples)
    for number, row in enumerate(rows, start=2):
        sample = _either(row[column].removeprefix("./"), position)
        where = f"dataset.labels: line {number} of {path}"
        if sample not in position:
            raise UserError(f"{where}: there is no training sample {sample!r}")
        if line[sample]:
            raise UserError(f"{where}: {sample!r} has a line already, number {line[sample]}")
        line[sample] = number
        for name, values in columns.items():
            label = _either(row[name], numbers)
            if label not in numbers:
                raise UserError(f"{where}: {name} {row[name]!r} is none of the classes ({_some(classes)})")
            values[position[sample]] = numbers[label]
        if "client" in row:
            if not row["client"]:
                raise UserError(f"{where}: it names no client")
            owners[position[sample]] = row["client"]
    missing = [sample for sample in samples if not line[sample]]
    if missing:
        raise UserError(
            f"dataset.labels: {path} has no line for {len(missing)} of {len(samples)} training samples, the first is"
            f" {missing[0]!r}"
        )
    return LabelFile(
        given=np.array(columns["label"], np.int64),
        true=np.array(columns["true"], np.int64) if "true" in columns else None,
        clients=number_clients(owners) if "client" in rows[0] else None,
    )


def choose_labels(
    truth: str, own_name: str, own: Labels | None, table: LabelFile | None
) -> tuple[Labels | None, Labels | None]:
    """The true and the given labels of a training set, None where there are none.

    ``own`` are the labels it has without a label file, under ``own_name``; ``truth`` says which are the correct ones:
    ``own_name``, ``csv`` (the label file's column ``true``) or ``none``. A label file's labels are the given ones;
    without it the set's own are, unless they are the truth.

    Raises:
        UserError: if what is to be the truth is not there, or nothing gives labels.
    """
    if truth == "csv" and (table is None or table.true is None):
        raise UserError("dataset.truth=csv needs a label file with a column 'true': set dataset.labels to one")
    if truth == own_name and own is None:
        raise UserError(
            f"dataset.truth={own_name} needs labels there: set dataset.truth=none, or csv if the file knows it"
        )
    if own is None and table is None:
        raise UserError("dataset.labels: the training samples have no labels: set it to a CSV file that gives them")
    if truth == "csv":
        assert table is not None
        return table.true, table.given
    if truth == own_name:
        return own, table.given if table else None
    return None, table.given if table else own


def number_clients(names: Sequence[str]) -> Indices:
    """Clients as numbers from 0 without gaps, in the order of their names, which is numeric if all are numbers.

    >>> number_clients(["10", "9", "10"]).tolist()
    [1, 0, 1]
    >>> number_clients(["ward b", "ward a", "9"]).tolist()
    [2, 1, 0]
    """
    numeric = all(name.isdecimal() for name in names)
    ordered = sorted(set(names), key=(lambda name: (int(name), name)) if numeric else (lambda name: (0, name)))
    numbers = {name: i for i, name in enumerate(ordered)}
    return np.array([numbers[name] for name in names], np.int64)


def _rows(path: Path, column: str) -> list[dict[str, str]]:
    """The lines of the file by column, with the columns that have to be there."""
    try:
        if path.exists() and not path.is_file():
            raise OSError("it is no regular file")
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            rows, header = list(reader), list(reader.fieldnames or [])
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"dataset.labels: {path} cannot be read ({error}); it should be a CSV file") from error
    if twice := [name for name in header if header.count(name) > 1]:
        raise UserError(f"dataset.labels: {path} has the column {twice[0]!r} twice")
    absent = [name for name in (column, "label") if name not in header]
    if absent:
        raise UserError(
            f"dataset.labels: {path} has no column {absent[0]!r}: its header should be {column},label and, if known,"
            " true and client"
        )
    for number, row in enumerate(rows, start=2):
        if None in row or None in row.values():
            raise UserError(f"dataset.labels: line {number} of {path} has not as many values as the header")
    if not rows:
        raise UserError(f"dataset.labels: {path} has no lines but its header")
    return rows


def _either(written: str, known: Container[str]) -> str:
    """What a cell stands for: what is written there, or where that is not known, the text that was made a cell of."""
    return written if written in known else text_of(written)


def _some(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
