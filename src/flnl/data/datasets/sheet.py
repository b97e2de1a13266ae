"""CSV and parquet files, of which columns are labels and owners, and others inputs."""

import csv
import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from annotated_types import Ge

from flnl.console.words import some
from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels
from flnl.core.ranges import Neutral, PathText, PositiveCount
from flnl.data.datasets.download import expand
from flnl.data.datasets.label_file import FROM_ROOT, LabelFile, choose_labels, read_label_file
from flnl.data.datasets.parquet import is_parquet, text_columns
from flnl.data.owners import LEFT_OUT, Owners
from flnl.data.votes import Vote
from flnl.storage.csv_lines import UNNAMED, CsvLines, opened, undecoded
from flnl.storage.written_names import composed, in_order

log = logging.getLogger(__name__)

Columns = Mapping[str, Sequence[str]]
MANY = 20
"""Classes of which each may have one sample, as in a small file."""


@dataclass(frozen=True, eq=False)
class Divided:
    """The rows of a sheet for training and testing."""

    train: Columns
    test: Columns
    known: Mapping[str, Any]  # of the rows, as arguments of ``assemble``: classes, labels, owners, ids


@dataclass(frozen=True)
class Sheet:
    """A file with columns for the label and, if known, the correct label and who holds a row.

    The test rows are those of a second file, or of the samples of each class every ``test_every``-th, beginning with
    the first. ``truth`` is the column with the correct labels: that of the labels if these are correct, null if none.
    ``labels`` is a label file whose labels are given in place of the column's; samples are called by their row of the
    sheet, from 0, and lines of rows for testing are passed over.
    """

    name: str
    root: PathText
    file: PathText  # a relative path begins at root, as of the next
    test: PathText | None
    test_every: Annotated[int, Ge(2)]
    label: str
    truth: str | None
    client: str | None
    train_sample: PositiveCount | None
    test_size: PositiveCount | None
    labels: Annotated[PathText | None, Neutral(None)] = field(default=None, kw_only=True)  # earlier records lack both
    vote: Annotated[Vote, Neutral("first")] = field(default="first", kw_only=True)

    @property
    def told(self) -> tuple[str, str]:
        """What messages call the training rows and the test rows."""
        root = expand(self.root)
        file = f"dataset.file: {root / Path(self.file).expanduser()}"
        return file, file if self.test is None else f"dataset.test: {root / Path(self.test).expanduser()}"

    def divided(self, inputs: Sequence[str] = (), left_out: Sequence[str] = ()) -> Divided:
        """The rows, after checking that there are the columns ``inputs`` and ``left_out``, too.

        Without ``inputs``, all other columns are.

        Raises:
            UserError: if a file cannot be read, or lacks a column or a label.
        """
        root, (told, of_test) = expand(self.root), self.told
        chosen = [("label", self.label), ("truth", self.truth), ("client", self.client)]
        chosen += [*(("text", one) for one in inputs), *(("leave_out", one) for one in left_out)]
        named = [(key, one) for key, one in chosen if one is not None]
        named_columns = {one for _, one in named}
        read = self._read(named)
        right = self.label if self.truth is None else self.truth
        read = {**read, **{one: named_classes(read[one], told) for one in (self.label, right)}}
        if self.test is None:
            labels = numbered(read[right], in_order({*read[right]}))
            tested = every(labels, self.test_every)
            kept = np.setdiff1d(np.arange(len(labels)), tested)
            train, test = taken(read, kept), taken(read, tested)
        else:
            train, test = read, read_columns(root / Path(self.test).expanduser(), of_test)
            used = inputs or [one for one in read if one not in named_columns]
            if missing := [one for one in (*used, right) if one not in test]:
                raise UserError(f"{of_test} has no column {missing[0]!r}, which dataset.file has")
            test = {**test, right: named_classes(test[right], of_test)}
            kept = np.arange(len(read[right]))
        classes = in_order({*train[self.label], *train[right], *test[right]})
        self._check_classes(classes, len(kept))
        ids = tuple(map(str, kept.tolist()))
        held = None if self.truth == self.label else LabelFile(numbered(train[self.label], classes), None, None)
        if self.labels is not None:
            tested_ids = {*map(str, range(len(read[right])))} - {*ids}
            held = read_label_file(root / Path(self.labels).expanduser(), "id", ids, classes, self.vote, tested_ids)
        known = None if self.truth is None else numbered(train[self.truth], classes)
        truth, given = choose_labels("none" if known is None else "truth", "truth", known, held, self.vote)
        owners, test_owners = self._owners(train, test, held.owners if held else None)
        return Divided(
            train,
            test,
            {
                "classes": classes,
                "truth": truth,
                "given": given,
                "test_labels": numbered(test[right], classes),
                "owners": owners,
                "test_owners": test_owners,
                "people": held.people if held else None,
                "ids": ids,
            },
        )

    def _read(self, named: Sequence[tuple[str, str]]) -> Columns:
        """The columns of the file, without the index of a frame of pandas; ``named`` has keys and their columns.

        Raises:
            UserError: if the file cannot be read, or lacks one of these columns.
        """
        told = self.told[0]
        read = read_columns(expand(self.root) / Path(self.file).expanduser(), told)
        for key, one in named:
            if one not in read:
                file, other = told.removeprefix("dataset.file: "), "; null if there is none" * (key == "truth")
                raise UserError(f"dataset.{key}: {file} has no column {one!r}; it has {', '.join(read)}{other}")
        first, *others = read
        if UNNAMED.fullmatch(first) is None or first in {one for _, one in named}:
            return read
        is_index = [*read[first]] == [*map(str, range(len(read[first])))]
        return {one: read[one] for one in others} if is_index else read

    def _check_classes(self, classes: Sequence[str], rows: int) -> None:
        """Check that labels are classes, given the number of training ``rows``.

        Raises:
            UserError: if there is one class, or nearly one a row, or two are one number.
        """
        told = f"{self.told[0]}: column {self.label!r}"
        if len(classes) < 2:
            raise UserError(f"{told} has {len(classes)} class; at least two are needed")
        if len(classes) > max(MANY, rows / 2):
            few = ", ".join(map(repr, classes[:3]))
            raise UserError(
                f"{told} has {len(classes)} values ({few}, ...) in {rows} training rows, "
                "and labels are classes, of which a model sees many examples each: dataset.label names their column"
            )
        if twice := [one for one in classes if _whole(one) != one and _whole(one) in classes]:
            raise UserError(
                f"{self.told[0]}: the labels {_whole(twice[0])!r} and {twice[0]!r} are one number; write them alike"
            )

    def _owners(self, train: Columns, test: Columns, held: Owners | None) -> tuple[Owners | None, Indices | None]:
        """The owners of the training rows, ``held`` by a label file or else of the column, and those of test rows."""
        if self.client is None:
            return held, None
        told, of_test = (f"{one}: column {self.client!r}" for one in self.told)
        owners = held or _owners(train[self.client], told)
        if self.client not in test:
            return owners, None
        theirs = _owners(test[self.client], of_test)
        place = owners.numbers_of(theirs.names)
        if self.test is None and (lost := [theirs.names[i] for i in np.flatnonzero(place == LEFT_OUT)]):
            log.warning(
                "%s: all rows of %s are for testing, so that no client is called so; dataset.test names a file "
                "of test rows instead",
                self.told[0],
                some(lost),
            )
        return owners, place[theirs.number]


def every(labels: Labels, step: int) -> Indices:
    """Ascending positions of every ``step``-th sample, in the order of the classes and within a class of the file.

    >>> every(np.array([0, 1, 0, 1, 0]), 2).tolist()
    [0, 3, 4]
    """
    return np.sort(np.argsort(labels, kind="stable")[::step]).astype(np.int64)


def read_columns(path: Path, told: str) -> dict[str, Sequence[str]]:
    """The values below each name of the header.

    Raises:
        UserError: if the file cannot be read, or is another kind of table.
    """
    if path.suffix.lower() in (".xlsx", ".xls"):
        raise UserError(
            f"{told} is an Excel file: write it as a CSV or parquet file, as by pandas.read_excel(...).to_csv(...)"
        )
    columns = text_columns(path, told) if is_parquet(path) else _csv_columns(path, told)
    if not any(columns.values()):
        raise UserError(f"{told} has no rows")
    return {**columns}


def _csv_columns(path: Path, told: str) -> dict[str, list[str]]:
    try:
        with opened(path) as file:
            lines = CsvLines(file, skipinitialspace=True)
            if any(map(undecoded, lines.header)):
                raise ValueError("line 1 is not encoded as UTF-8")
            columns: dict[str, list[str]] = {name: [] for name in lines.header}
            for number, row in lines:
                for name, value in row.items():
                    if undecoded(value):
                        raise ValueError(f"line {number} is not encoded as UTF-8")
                    columns[name].append(value.strip())
    except (OSError, UnicodeError, csv.Error, ValueError) as error:
        begins = FROM_ROOT if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"{told} cannot be read ({error}); it should be a CSV file{begins}") from error
    return columns


def named_classes(written: Sequence[str], told: str) -> Sequence[str]:
    """Labels by which classes are equal that look equal.

    Raises:
        UserError: if one is missing.
    """
    for row, name in enumerate(written):
        if name.lower() in ("", "nan"):
            raise UserError(f"{told}: row {row} has no label" + f", but {name!r}" * bool(name))
    return [composed(name) for name in written]


def taken(columns: Columns, index: Indices) -> Columns:
    """The rows at ``index`` of each column."""
    return {name: [values[i] for i in index.tolist()] for name, values in columns.items()}


def numbered(written: Sequence[str], classes: Sequence[str]) -> Labels:
    """Labels as numbers of the classes."""
    number = {name: i for i, name in enumerate(classes)}
    return np.array([number[name] for name in written], np.int64)


def _whole(name: str) -> str:
    """A label that is a whole number without its decimals, as of 1.0."""
    return re.sub(r"(?<=[0-9])\.0+$", "", name)


def _owners(written: Sequence[str], told: str) -> Owners:
    try:
        return Owners.of(written, told)
    except ValueError as error:
        raise UserError(f"{told}: {error}") from error
