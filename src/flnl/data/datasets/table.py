"""Tables: a user's CSV file with a column for the label, and scikit-learn's."""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels
from flnl.core.ranges import FromFiles, PathText, PositiveCount
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import assemble
from flnl.data.datasets.download import expand
from flnl.data.datasets.label_file import FROM_ROOT
from flnl.data.datasets.rows import RowTexts, Scaling, prepared, stored
from flnl.data.owners import LEFT_OUT, Owners
from flnl.storage.csv_lines import CsvLines, opened

Every = Annotated[int, Ge(2)]


@dataclass(frozen=True)
class Table:
    """The rows of a CSV file with a header: numbers, but for the columns of label, truth, client and ``leave_out``.

    The test rows are those of a second file, or of the samples of each class every ``test_every``-th, beginning with
    the first. ``truth`` is the column with the correct labels: that of the labels if these are correct, null if none.
    """

    name: str
    root: PathText
    file: PathText  # a relative path begins at root, as of the next
    test: PathText | None
    test_every: Every
    label: str
    truth: str | None
    client: str | None
    leave_out: list[str]
    normalize: Scaling
    train_sample: PositiveCount | None
    test_size: PositiveCount | None

    def __call__(self) -> Dataset:
        """Load the data set.

        Raises:
            UserError: if a file cannot be read, or lacks a column or a number.
        """
        root = expand(self.root)
        path = root / Path(self.file).expanduser()
        read = _columns(path, "dataset.file")
        named = [self.label, *(one for one in (self.truth, self.client) if one is not None), *self.leave_out]
        if missing := [one for one in named if one not in read]:
            raise UserError(f"dataset.file: {path} has no column {missing[0]!r}; it has {', '.join(read)}")
        columns = [one for one in read if one not in named]
        right = self.label if self.truth is None else self.truth
        if self.test is None:
            classes = _ordered({*read[self.label], *read[right]})
            labels = _numbers(read[right], classes, f"dataset.file: column {right!r} of {path}")
            tested = every(labels, self.test_every)
            train = np.setdiff1d(np.arange(len(labels)), tested)
            parts = _taken(read, train), _taken(read, tested)
            told = f"dataset.file: {path}"
        else:
            path = root / Path(self.test).expanduser()
            parts = read, _columns(path, "dataset.test")
            if missing := [one for one in (*columns, right) if one not in parts[1]]:
                raise UserError(f"dataset.test: {path} has no column {missing[0]!r}, which dataset.file has")
            classes = _ordered({*read[self.label], *read[right], *parts[1][right]})
            told = f"dataset.test: {path}"
        if len(classes) < 2:
            raise UserError(f"dataset.file: column {self.label!r} has {len(classes)} class; at least two are needed")
        x_train, x_test = (_values(part, columns, told) for part in parts)
        given = _numbers(parts[0][self.label], classes, told)
        truth = None if self.truth is None else _numbers(parts[0][self.truth], classes, told)
        owners, test_owners = None, None
        if self.client is not None:
            owners = _owners(parts[0][self.client], told)
            if self.client in parts[1]:
                number = {name: i for i, name in enumerate(owners.names)}
                other = _owners(parts[1][self.client], told)
                known = np.array([number.get(name, LEFT_OUT) for name in other.names], np.int64)
                test_owners = known[other.number]
        return _assembled(
            self,
            classes=classes,
            x=(x_train, x_test),
            columns=columns,
            test_labels=_numbers(parts[1][right], classes, told),
            truth=truth,
            given=None if self.truth == self.label else given,
            owners=owners,
            test_owners=test_owners,
        )


@dataclass(frozen=True)
class Bundled:
    """A table of scikit-learn: ``breast_cancer`` (569 rows of 30 numbers, 2 classes) and ``wine`` (178 of 13, 3) come
    with it; ``covertype`` (581,012 of 54, 7) is fetched into ``root`` by scikit-learn.

    Of the samples of each class every fifth is for testing, beginning with the first.
    """

    name: Literal["breast_cancer", "wine", "covertype"]
    root: PathText
    download: Annotated[bool, FromFiles(False)]
    normalize: Scaling
    train_sample: PositiveCount | None
    test_size: PositiveCount | None

    def __call__(self) -> Dataset:
        """Load the data set; the labels are the truth.

        Raises:
            UserError: if it has to be fetched and cannot be.
        """
        from sklearn import datasets

        try:
            if self.name == "covertype":
                source: Any = datasets.fetch_covtype(data_home=expand(self.root), download_if_missing=self.download)
                labels = source.target.astype(np.int64) - 1
            else:
                source = datasets.load_wine() if self.name == "wine" else datasets.load_breast_cancer()
                labels = source.target.astype(np.int64)
        except OSError as error:
            raise UserError(
                f"dataset.root: covertype is not in {expand(self.root)} ({error}); scikit-learn fetches it with "
                "dataset.download=true"
            ) from error
        tested = every(labels, 5)
        train = np.setdiff1d(np.arange(len(labels)), tested)
        return _assembled(
            self,
            classes=COVERS if self.name == "covertype" else tuple(map(str, source.target_names)),
            x=(source.data[train], source.data[tested]),
            columns=list(map(str, source.feature_names)),
            test_labels=labels[tested],
            truth=labels[train],
        )


COVERS = ("spruce-fir", "lodgepole pine", "ponderosa pine", "cottonwood-willow", "aspen", "douglas-fir", "krummholz")


def _assembled(
    part: Table | Bundled,
    *,
    classes: Sequence[str],
    x: tuple[NDArray[Any], NDArray[Any]],
    columns: list[str],
    test_labels: Labels,
    truth: Labels | None,
    given: Labels | None = None,
    owners: Owners | None = None,
    test_owners: Indices | None = None,
) -> Dataset:
    train, test = stored(x[0], "dataset.file: training rows"), stored(x[1], "dataset.file: test rows")
    return assemble(
        name=part.name,
        classes=classes,
        train=train,
        test=test,
        test_labels=test_labels,
        transform=prepared(train, part.normalize),
        truth=truth,
        given=given,
        owners=owners,
        test_owners=test_owners,
        texts=RowTexts(train.pixels.numpy(), columns),
        train_size=None,
        train_sample=part.train_sample,
        test_size=part.test_size,
    )


def every(labels: Labels, step: int) -> Indices:
    """Ascending positions of every ``step``-th sample, in the order of the classes and within a class of the file.

    >>> every(np.array([0, 1, 0, 1, 0]), 2).tolist()
    [0, 1, 4]
    """
    return np.sort(np.argsort(labels, kind="stable")[::step]).astype(np.int64)


def _columns(path: Path, key: str) -> dict[str, list[str]]:
    """The values below each name of the header.

    Raises:
        UserError: if the file cannot be read, or is another kind of table.
    """
    if path.suffix in (".parquet", ".pq", ".xlsx"):
        raise UserError(f"{key}: {path} is no CSV file: write it as one, as by pandas.read_parquet(...).to_csv(...)")
    try:
        with opened(path) as file:
            lines = CsvLines(file, skipinitialspace=True)
            columns: dict[str, list[str]] = {name: [] for name in lines.header}
            for _, row in lines:
                for name, value in row.items():
                    columns[name].append(value.strip())
    except (OSError, UnicodeError, csv.Error, ValueError) as error:
        begins = FROM_ROOT if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"{key}: {path} cannot be read ({error}); it should be a CSV file{begins}") from error
    if not any(columns.values()):
        raise UserError(f"{key}: {path} has no rows")
    return columns


def _taken(columns: Mapping[str, Sequence[str]], index: Indices) -> dict[str, list[str]]:
    return {name: [values[i] for i in index.tolist()] for name, values in columns.items()}


def _values(part: Mapping[str, Sequence[str]], columns: Sequence[str], told: str) -> NDArray[np.float64]:
    """The numbers [N, D] of these columns.

    Raises:
        UserError: naming the first value that is none.
    """
    if not columns:
        raise UserError(f"{told} has no column of numbers beside those of label and client")
    values = np.empty((len(part[columns[0]]), len(columns)))
    for d, name in enumerate(columns):
        for row, text in enumerate(part[name]):
            try:
                values[row, d] = float(text)
            except ValueError:
                raise UserError(
                    f"{told}: column {name!r} has {text!r}, which is no number: write categories as numbers, fill in"
                    " what is missing (with a column that says where), or name the column in dataset.leave_out"
                ) from None
    return values


def _ordered(names: set[str]) -> tuple[str, ...]:
    """The classes: in numeric order if all are numbers."""
    return tuple(sorted(names, key=(lambda name: (int(name), name)) if all(map(str.isdecimal, names)) else None))


def _numbers(written: Sequence[str], classes: Sequence[str], told: str) -> Labels:
    """Labels as numbers of the classes.

    Raises:
        UserError: if one is missing.
    """
    if "" in written:
        raise UserError(f"{told}: row {list(written).index('')} has no label")
    number = {name: i for i, name in enumerate(classes)}
    return np.array([number[name] for name in written], np.int64)


def _owners(written: Sequence[str], told: str) -> Owners:
    try:
        return Owners.of(written, told)
    except ValueError as error:
        raise UserError(f"{told}: {error}") from error
