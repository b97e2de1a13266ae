"""Tables: a user's CSV file with a column for the label, and scikit-learn's."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.core.ranges import FromFiles, PathText, PositiveCount
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import assemble
from flnl.data.datasets.download import expand
from flnl.data.datasets.rows import RowTexts, Scaling, prepared, stored
from flnl.data.datasets.sheet import Sheet, every
from flnl.storage.csv_lines import UNNAMED


@dataclass(frozen=True)
class Table(Sheet):
    """A sheet of which every column is a number, but for those of label, truth, client and ``leave_out``."""

    leave_out: list[str]
    normalize: Scaling

    def __call__(self) -> Dataset:
        """Load the data set.

        Raises:
            UserError: if a file cannot be read, or lacks a column or a number.
        """
        rows = self.divided(left_out=self.leave_out)
        columns = [one for one in rows.train if one not in (self.label, self.truth, self.client, *self.leave_out)]
        if unnamed := [one for one in columns if UNNAMED.fullmatch(one)]:
            raise UserError(
                f"{self.told[0]} has a column {unnamed[0]!r}, as of row numbers that are no longer 0, 1, 2 ...: give "
                "it a name if it is an input, or take it out"
            )
        x = _values(rows.train, columns, self.told[0]), _values(rows.test, columns, self.told[1])
        return _assembled(self, x, columns, rows.known)


@dataclass(frozen=True)
class Bundled:
    """A table of scikit-learn: ``breast_cancer`` (569 rows of 30 numbers, 2 classes) and ``wine`` (178 of 13, 3) come
    with it; ``covertype`` (581,012 of 54, 7) is fetched into ``root`` by scikit-learn.

    Of the samples of each class every fifth is for testing, beginning with the first.
    """

    name: Literal["breast_cancer", "wine", "covertype"]
    root: PathText | None  # of what is fetched
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
                folder = None if self.root is None else expand(self.root)  # None: scikit-learn's own
                source: Any = datasets.fetch_covtype(data_home=folder, download_if_missing=self.download)
                labels = source.target.astype(np.int64) - 1
            else:
                source = datasets.load_wine() if self.name == "wine" else datasets.load_breast_cancer()
                labels = source.target.astype(np.int64)
        except OSError as error:
            raise UserError(
                f"dataset.root={self.root}: covertype is not there ({error}); scikit-learn fetches it with "
                "dataset.download=true"
            ) from error
        tested = every(labels, 5)
        train = np.setdiff1d(np.arange(len(labels)), tested)
        classes = COVERS if self.name == "covertype" else tuple(map(str, source.target_names))
        known = {"classes": classes, "test_labels": labels[tested], "truth": labels[train]}
        x = source.data[train], source.data[tested]
        return _assembled(self, x, list(map(str, source.feature_names)), known)


THOUSANDS = re.compile(r"[+-]?[1-9][0-9]{0,2}(,[0-9]{3})+([.][0-9]*)?")
FLOAT32 = float(np.finfo(np.float32).max)
COVERS = ("spruce-fir", "lodgepole pine", "ponderosa pine", "cottonwood-willow", "aspen", "douglas-fir", "krummholz")


def _assembled(
    part: Table | Bundled, x: tuple[NDArray[Any], NDArray[Any]], columns: list[str], known: Mapping[str, Any]
) -> Dataset:
    train, test = stored(x[0], "dataset.file: training rows"), stored(x[1], "dataset.file: test rows")
    return assemble(
        name=part.name,
        train=train,
        test=test,
        transform=prepared(train, part.normalize),
        texts=RowTexts(train.pixels.numpy(), columns),
        train_size=None,
        train_sample=part.train_sample,
        test_size=part.test_size,
        **known,
    )


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
            values[row, d] = number = _number(text)
            if abs(number) > FLOAT32:
                raise UserError(f"{told}: column {name!r} has {text!r}, which is not finite as float32")
            if not isfinite(number) and THOUSANDS.fullmatch(text.strip()):
                either = text.count(",") == 1 and "." not in text
                how = "if the comma separates thousands, leave it out; if decimals, write a point"
                raise UserError(f"{told}: column {name!r} has {text!r}: {how if either else 'leave the commas out'}")
            if not isfinite(number) and isfinite(_number(text.replace(",", "."))):
                raise UserError(f"{told}: column {name!r} has {text!r}: write decimals with a point")
            if not isfinite(number):
                raise UserError(
                    f"{told}: column {name!r} has {text!r}, which is no number: write categories as numbers, fill in"
                    " what is missing (with a column that says where), or name the column in dataset.leave_out"
                )
    return values


def _number(text: str) -> float:
    try:
        return nan if "_" in text else float(text)  # Python reads 1_0 as 10
    except ValueError:
        return nan
