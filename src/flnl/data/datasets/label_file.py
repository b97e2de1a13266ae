"""Read a user's labels from a CSV file: the given label, and if known the true label and the client.

Every sample has exactly one line; errors name the line.
"""

import csv
import re
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path

import numpy as np

from flnl.console.words import some
from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels
from flnl.data.owners import Owners, owner_name
from flnl.data.votes import NOBODY, Vote, dealt, voted
from flnl.storage.csv_lines import CsvLines, LineLengthError, opened, undecoded
from flnl.storage.spreadsheet import text_of
from flnl.storage.written_names import WrittenNames

CLIENT = "client"
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


ANOTHER = re.compile("label_[0-9]+")
"""Columns with labels by more people: ``label_2``, ``label_3`` ... A cell may be empty."""
COUNT = re.compile("count_(?P<name>.+)", re.DOTALL)
"""Columns with how many people gave a class: ``count_cat``, ``count_dog`` ... An empty cell is 0."""
MOST = 1000
"""The most counted labels of a sample."""


def read_label_file(
    path: Path,
    column: str,
    samples: Sequence[str],
    classes: Sequence[str],
    vote: Vote = "first",
    passed_over: Collection[str] = (),
) -> LabelFile:
    """Read a CSV file with a header: ``column`` (the sample), ``label``, and optionally ``true`` and ``client``.

    Further columns that are called as ``ANOTHER`` have labels by more people, of whom each may have left out samples
    (the first only if ``vote`` does not take theirs); or those called as ``COUNT`` count the
    labels of each class, and then there need be no ``label``. ``vote`` says which label is given; among equally many
    counted ones, ``majority`` takes the first class.

    It is encoded as UTF-8, or marked as UTF-16; a file's name that is no UTF-8 stands there in its own bytes. A label
    is the name of a class, or its number if no class name is a number. Names may be written as in ``WrittenNames``: one
    that looks like a formula has a ``'`` before it in a run's ``labels.csv``, and a path may begin with ``train/``.

    Args:
        path: the file.
        column: name of the column with the samples.
        samples: the training samples, in the order of the result.
        classes: the names of the classes.
        vote: which of several labels is given.
        passed_over: samples that are not for training; their lines are not read.

    Raises:
        UserError: if the file cannot be read; if a sample is unknown, duplicated or missing; if a label is not a
            class; or if ``vote`` chooses among labels that are not there.
    """
    rows = _rows(path, column)
    position, named = WrittenNames(samples, below="train"), _classes(classes)
    first = rows[0][1]
    more = [name for name in first if ANOTHER.fullmatch(name)]
    may_be_empty = [*more, *["label"] * (vote != "first" and bool(more))]
    class_of = _counted_classes(first, named, path)
    _check_vote(vote, path, one="label" in first, several=bool(more), counts=bool(class_of))
    columns: dict[str, list[int]] = {
        name: [NOBODY] * len(samples) for name in ("label", *more, "true") if name in first
    }
    counts = np.zeros((len(samples), len(classes)), np.int64)

    line = [0] * len(samples)  # line number of each sample
    owners = [""] * len(samples)
    for number, row in rows:
        where = f"dataset.labels: line {number} of {path}"
        place = position.find(row[column])
        if place is None and row[column].strip() in passed_over:
            continue
        if place is None:
            hint = "; the file should be encoded as UTF-8" if undecoded(row[column]) else ""
            raise UserError(f"{where}: there is no training sample {row[column]!r}{hint}")
        if line[place]:
            raise UserError(f"{where}: {samples[place]!r} has a line already, number {line[place]}")
        line[place] = number
        for name, values in columns.items():
            if name in may_be_empty and not row[name].strip():
                continue
            label = named(row[name])
            if label is None:
                raise UserError(f"{where}: {name} {_no_class(row[name], classes, of_images=column == 'path')}")
            values[place] = label
        if more and all(values[place] == NOBODY for name, values in columns.items() if name != "true"):
            raise UserError(f"{where}: {samples[place]!r} has no label")
        for name, label in class_of.items():
            counts[place, label] = _count(row[name], f"{where}: {name}")
        if class_of and not 0 < counts[place].sum() <= MOST:
            raise UserError(f"{where}: {samples[place]!r} has {counts[place].sum()} labels; it should have 1 to {MOST}")
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
    given, people = _given(columns, more, counts if class_of else None, vote)
    return LabelFile(
        given=given,
        true=np.array(columns["true"], np.int64) if "true" in columns else None,
        owners=Owners.of(owners, f"dataset.labels={path}") if CLIENT in first else None,
        people=people,
    )


def _given(
    columns: dict[str, list[int]], more: Sequence[str], counts: Indices | None, vote: Vote
) -> tuple[Labels, Indices | None]:
    """The given labels [N], and those of people [A, N]; None: there is one person."""
    if counts is None:
        people = np.array([columns[name] for name in ("label", *more)], np.int64)
        return voted(people, vote), people if more else None
    people = dealt(counts)
    if vote == "first":
        return np.array(columns["label"], np.int64), people
    if vote == "majority":
        return np.asarray(counts.argmax(axis=1)), people
    return voted(people, vote), people


def _classes(classes: Sequence[str]) -> Callable[[str], int | None]:
    """The number of the class that a cell names, None if it names none."""
    numbers, numbered = WrittenNames(classes), not any(name.isdecimal() for name in classes)

    def named(cell: str) -> int | None:
        label = numbers.find(cell)
        if label is None and numbered and cell.isdecimal() and int(cell) < len(classes):
            return int(cell)
        return label

    return named


def _no_class(cell: str, classes: Sequence[str], *, of_images: bool) -> str:
    """What is wrong with a cell that names no class."""
    if not cell.strip():
        return "is empty"
    way = "; a class without a test image needs a folder in train" if of_images else ""
    if (number := _number(cell)) is not None and (alike := [one for one in classes if _number(one) == number]):
        way = f"; {alike[0]!r} is that number: write the labels as the classes"
    return f"{cell!r} is none of the classes ({some(classes)}){way}"


def _number(text: str) -> Decimal | None:
    """A finite number, to its last digit, as codes may be long; None of other texts."""
    with suppress(InvalidOperation):
        number = Decimal(text)
        return number if number.is_finite() and "_" not in text else None
    return None


def _counted_classes(header: Iterable[str], named: Callable[[str], int | None], path: Path) -> dict[str, int]:
    """The class that each column of counts is of."""
    found: dict[str, int] = {}
    for name in header:
        if match := COUNT.fullmatch(name):
            label = named(match["name"])
            if label is None:
                raise UserError(f"dataset.labels: {path} has a column {name!r}, and {match['name']!r} is no class")
            if label in found.values():
                raise UserError(f"dataset.labels: {path} has two columns of counts of {match['name']!r}")
            found[name] = label
    return found


def _count(cell: str, where: str) -> int:
    text = cell.strip() or "0"
    if not (text.isascii() and text.isdecimal() and len(text) <= 6):
        raise UserError(f"{where} is {cell!r}; it should be how many people gave this class, 0 to 999999")
    return int(text)


def _check_vote(vote: Vote, path: Path, *, one: bool, several: bool, counts: bool) -> None:
    if counts and several:
        raise UserError(f"dataset.labels: {path} has both people's labels and counts of labels; keep one of them")
    if vote != "first" and not (several or counts):
        raise UserError(
            f"dataset.vote={vote} chooses among labels by several people, and {path} has one a sample: add columns "
            "label_2 ..., or count_CLASS ..."
        )
    if vote == "first" and counts and not one:
        raise UserError(
            f"dataset.vote=first takes the column 'label', and {path} has counts alone: set it to majority or random"
        )


def named_labels(path: Path, column: str) -> set[str]:
    """The labels that stand in a label file, as they stand there and without a ``'`` before a formula.

    Raises:
        UserError: if the file cannot be read.
    """
    rows = _rows(path, column)
    read = [name for name in rows[0][1] if name in ("label", "true") or ANOTHER.fullmatch(name)]
    written = {row[name] for _, row in rows for name in read if row[name].strip()}
    written |= {match["name"] for name in rows[0][1] if (match := COUNT.fullmatch(name))}
    return written | set(map(text_of, written))


def choose_labels(
    truth: str, builtin_name: str, builtin: Labels | None, table: LabelFile | None, vote: Vote
) -> tuple[Labels | None, Labels | None]:
    """Decide which labels of a training set are true and which are given.

    A label file's labels are the given ones. Without it, the data set's labels are given, unless they are the truth.

    Args:
        truth: which labels are correct: ``builtin_name``, ``csv`` (the label file's column ``true``) or ``none``.
        builtin_name: name of the labels that the data set has without a label file.
        builtin: those labels, None if there are none.
        table: the label file, None if there is none.
        vote: which of several labels it was to give.

    Returns:
        The true and the given labels; None if unknown.

    Raises:
        UserError: if the labels that ``truth`` names do not exist, or there are no labels at all.
    """
    if vote != "first" and (table is None or table.people is None):
        raise UserError(f"dataset.vote={vote} chooses among labels by several people: set dataset.labels to their file")
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
    if any(map(undecoded, header)):
        raise UserError(
            f"dataset.labels: {path} cannot be read (it is not encoded as UTF-8); it should be a CSV file in UTF-8"
        )
    labelled = "label" in header or any(map(COUNT.fullmatch, header))
    absent = [name for name, there in ((column, column in header), ("label", labelled)) if not there]
    if absent:
        raise UserError(
            f"dataset.labels: {path} has no column {absent[0]!r}: its header should be {column},label and, if known,"
            " true and client"
        )
