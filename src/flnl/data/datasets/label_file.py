"""Read a user's labels from a CSV file: the given label, and if known the true label and the client.

Every sample has exactly one line; errors name the line.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels
from flnl.core.streams import stream
from flnl.data.owners import Owners, owner_name
from flnl.storage.csv_lines import CsvLines, LineLengthError, opened
from flnl.storage.spreadsheet import text_of
from flnl.storage.written_names import WrittenNames

CLIENT = "client"
NOBODY = -1
"""In place of the label that a person has not given."""

FROM_ROOT = "; a relative path begins at dataset.root"
"""What messages say of a file that is not there: ``dataset.labels`` or ``dataset.file``."""


@dataclass(frozen=True)
class LabelFile:
    """The columns of a label file, in the order of the samples."""

    given: Labels  # [N]
    true: Labels | None  # [N]
    owners: Owners | None  # of N samples
    people: Indices | None = (
        None  # [A, N], the labels by each of A people, NOBODY where one gave none; None: one person
    )


Vote = Literal["first", "majority", "random"]
"""Which of several labels of a sample is given: that of the column ``label``; the most frequent one, among equally
frequent ones the first; or a drawn one."""
ANOTHER = re.compile("label_[0-9]+")
"""Columns with labels by more people: ``label_2``, ``label_3`` ... A cell may be empty."""


def read_label_file(
    path: Path, column: str, samples: Sequence[str], classes: Sequence[str], vote: Vote = "first"
) -> LabelFile:
    """Read a CSV file with a header: ``column`` (the sample), ``label``, and optionally ``true`` and ``client``.

    Further columns that are called as ``ANOTHER`` have labels by more people; ``vote`` says which label is given.

    It is encoded as UTF-8, or marked as UTF-16; a file's name that is no UTF-8 stands there in its own bytes. A label
    is the name of a class, or its number if no class name is a number. Names may be written as in ``WrittenNames``: one
    that looks like a formula has a ``'`` before it in a run's ``labels.csv``, and a path may begin with ``train/``.

    Args:
        path: the file.
        column: name of the column with the samples.
        samples: the training samples, in the order of the result.
        classes: the names of the classes.
        vote: which of several labels is given.

    Raises:
        UserError: if the file cannot be read; if a sample is unknown, duplicated or missing; or if a label is not a
            class.
    """
    rows = _rows(path, column)
    position, numbers = WrittenNames(samples, below="train"), WrittenNames(classes)
    numbered = not any(name.isdecimal() for name in classes)

    line = [0] * len(samples)  # line number of each sample
    first = rows[0][1]
    more = [name for name in first if ANOTHER.fullmatch(name)]
    columns: dict[str, list[int]] = {
        name: [NOBODY] * len(samples) for name in ("label", *more, "true") if name in ("label", *more) or name in first
    }
    owners = [""] * len(samples)
    for number, row in rows:
        where = f"dataset.labels: line {number} of {path}"
        place = position.find(row[column])
        if place is None:
            hint = "; the file should be encoded as UTF-8" if _undecoded(row[column]) else ""
            raise UserError(f"{where}: there is no training sample {row[column]!r}{hint}")
        if line[place]:
            raise UserError(f"{where}: {samples[place]!r} has a line already, number {line[place]}")
        line[place] = number
        for name, values in columns.items():
            if name in more and not row[name].strip():
                continue
            label = numbers.find(row[name])
            if label is None and numbered and row[name].isdecimal() and int(row[name]) < len(classes):
                label = int(row[name])
            if label is None:
                way = "; a class without a test image needs a folder in train" if column == "path" else ""
                raise UserError(f"{where}: {name} {row[name]!r} is none of the classes ({some(classes)}){way}")
            values[place] = label
        if CLIENT in row:
            try:
                owner_name(row[CLIENT])
            except ValueError as error:
                way = "; samples of no client are named in a file at partition.path" if "-" in row[CLIENT] else ""
                raise UserError(f"{where}: {error}{way}") from None
            owners[place] = row[CLIENT]
    missing = [sample for sample, number in zip(samples, line, strict=True) if not number]
    if missing:
        raise UserError(
            f"dataset.labels: {path} has no line for {len(missing)} of {len(samples)} training samples, the first is"
            f" {missing[0]!r}"
        )
    given = np.array([columns[name] for name in ("label", *more)], np.int64)  # [people, N]
    return LabelFile(
        given=voted(given, vote),
        true=np.array(columns["true"], np.int64) if "true" in columns else None,
        owners=Owners.of(owners, f"dataset.labels={path}") if CLIENT in first else None,
        people=given if more else None,
    )


def counted(labels: Indices, classes: int) -> Indices:
    """How many of ``labels`` [people, N] each class has, [N, classes]; ``NOBODY`` is no label.

    >>> counted(np.array([[0, 1], [0, -1]]), 2).tolist()
    [[2, 0], [0, 1]]
    """
    return np.asarray((labels[:, :, None] == np.arange(classes)).sum(axis=0), np.int64)


def voted(labels: Indices, vote: Vote) -> Labels:
    """The given label [N] of ``labels`` [people, N], of which the first has one for each sample.

    >>> voted(np.array([[0, 1, 2], [1, 2, 2], [1, 0, -1]]), "majority").tolist()
    [1, 1, 2]
    """
    if vote == "first" or len(labels) == 1:
        return np.asarray(labels[0], np.int64)
    there = labels != NOBODY
    if vote == "majority":
        times = (labels[:, None] == labels[None]).sum(axis=1) * there  # [people, N], how often each label was given
        best = times.argmax(axis=0)  # the first of equally frequent ones
    else:
        best = np.where(there, stream(0, "vote").random(labels.shape), -1.0).argmax(axis=0)
    return np.asarray(labels[best, np.arange(labels.shape[1])], np.int64)


def named_labels(path: Path, column: str) -> set[str]:
    """The labels that stand in a label file, as they stand there and without a ``'`` before a formula.

    Raises:
        UserError: if the file cannot be read.
    """
    rows = _rows(path, column)
    read = [name for name in rows[0][1] if name in ("label", "true") or ANOTHER.fullmatch(name)]
    written = {row[name] for _, row in rows for name in read if row[name].strip()}
    return written | set(map(text_of, written))


def choose_labels(
    truth: str, builtin_name: str, builtin: Labels | None, table: LabelFile | None
) -> tuple[Labels | None, Labels | None]:
    """Decide which labels of a training set are true and which are given.

    A label file's labels are the given ones. Without it, the data set's labels are given, unless they are the truth.

    Args:
        truth: which labels are correct: ``builtin_name``, ``csv`` (the label file's column ``true``) or ``none``.
        builtin_name: name of the labels that the data set has without a label file.
        builtin: those labels, None if there are none.
        table: the label file, None if there is none.

    Returns:
        The true and the given labels; None if unknown.

    Raises:
        UserError: if the labels that ``truth`` names do not exist, or there are no labels at all.
    """
    if truth == "csv" and (table is None or table.true is None):
        raise UserError("dataset.truth=csv needs a label file with a column 'true': set dataset.labels to one")
    if truth == builtin_name and builtin is None:
        raise UserError(
            f"dataset.truth={builtin_name} needs labels there: set dataset.truth=none, or csv if the file knows it"
        )
    if builtin is None and table is None:
        raise UserError("dataset.labels: the training samples have no labels: set it to a CSV file that gives them")
    if truth == "csv":
        assert table is not None
        return table.true, table.given
    if truth == builtin_name:
        return builtin, table.given if table else None
    return None, table.given if table else builtin


def _rows(path: Path, column: str) -> list[tuple[int, dict[str, str]]]:
    """The lines of the file, by number, as dictionaries, after checking that the required columns exist."""
    try:
        with opened(path) as file:
            lines = CsvLines(file, skipinitialspace=True)
            _check_header(lines.header, path, column)
            rows = list(lines)
    except LineLengthError as error:
        raise UserError(
            f"dataset.labels: line {error.line} of {path} has another number of values than the header"
        ) from error
    except (OSError, UnicodeError, csv.Error) as error:
        begins = FROM_ROOT if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"dataset.labels: {path} cannot be read ({error}); it should be a CSV file{begins}") from error
    if not rows:
        raise UserError(f"dataset.labels: {path} has no lines after its header")
    return rows


def _check_header(header: Sequence[str], path: Path, column: str) -> None:
    if any(map(_undecoded, header)):
        raise UserError(
            f"dataset.labels: {path} cannot be read (it is not encoded as UTF-8); it should be a CSV file in UTF-8"
        )
    absent = [name for name in (column, "label") if name not in header]
    if absent:
        raise UserError(
            f"dataset.labels: {path} has no column {absent[0]!r}: its header should be {column},label and, if known,"
            " true and client"
        )


def _undecoded(text: str) -> bool:
    """Whether a text has bytes that are no UTF-8, as names of files may have."""
    return any("\udc80" <= character <= "\udcff" for character in text)


def some(names: Sequence[str]) -> str:
    """The first few names."""
    return ", ".join(names[:5]) + (", ..." if len(names) > 5 else "")
