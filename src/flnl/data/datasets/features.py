"""Features of samples, such as embeddings that a foundation model gave: one file of vectors and labels."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.ranges import PathText, PositiveCount
from flnl.data.dataset import Dataset
from flnl.data.datasets.arrays import labelled, load, texts_of
from flnl.data.datasets.assemble import assemble
from flnl.data.datasets.download import expand
from flnl.data.datasets.label_file import FROM_ROOT
from flnl.data.datasets.parquet import feature_arrays, is_parquet
from flnl.data.datasets.rows import RowTexts, Scaling, prepared, stored
from flnl.data.votes import Vote
from flnl.storage.csv_lines import CsvLines, opened


@dataclass(frozen=True)
class Features:
    """``x_train``, ``x_test`` [N, D], ``y_train``, ``y_test``; ``y_given``, ``owners``, ``ids``, ``classes`` if known.

    They are arrays of an ``.npz`` file, or those that ``feature_arrays`` makes of a parquet file. float16 and float32
    are stored as they are. Labels, ``truth``, a label file, owners and ids are those of ``dataset=arrays``. ``columns``
    [D] names the numbers, for the page of an audit; ``texts`` is a CSV file with the columns id (as of a label file)
    and text, which the page shows instead.
    """

    name: str
    root: PathText
    file: PathText  # a relative path begins at root, as of the next two
    labels: PathText | None
    texts: PathText | None
    truth: Literal["y_train", "csv", "none"]
    vote: Vote
    normalize: Scaling
    train_size: PositiveCount | None
    train_sample: PositiveCount | None
    test_size: PositiveCount | None

    def __call__(self) -> Dataset:
        """Load the data set.

        Raises:
            UserError: if arrays, label file and configuration do not match.
        """
        root = expand(self.root)
        path = root / Path(self.file).expanduser()
        arrays = feature_arrays(path) if is_parquet(path) else load(path)
        train, test = (stored(arrays[name], f"dataset.file: {name} of {path}") for name in ("x_train", "x_test"))
        if train.shape != test.shape:
            raise UserError(
                f"dataset.file: x_train and x_test of {path} have {train.shape[0]} and {test.shape[0]} columns;"
                " they must agree"
            )
        labels = None if self.labels is None else root / Path(self.labels).expanduser()
        known = labelled(arrays, path, (len(train), len(test)), labels, self.truth, self.vote)
        ids = known["ids"] or tuple(map(str, range(len(train))))
        names = [str(i) for i in range(train.shape[0])]
        if "columns" in arrays:
            names = texts_of(np.asarray(arrays["columns"]).reshape(-1), f"dataset.file: columns of {path}")
            if len(names) != train.shape[0]:
                raise UserError(f"dataset.file: {path} names {len(names)} columns of {train.shape[0]}")
        texts = None if self.texts is None else read_texts(root / Path(self.texts).expanduser(), ids)
        return assemble(
            name=self.name,
            train=train,
            test=test,
            transform=prepared(train, self.normalize),
            texts=texts if texts is not None else RowTexts(train.pixels.numpy(), names),
            train_size=self.train_size,
            train_sample=self.train_sample,
            test_size=self.test_size,
            **known,
        )


def read_texts(path: Path, ids: Sequence[str]) -> Sequence[str]:
    """The text [N] of each sample: columns ``id``, one of ``ids`` [N], and ``text``; "" where there is no line.

    Raises:
        UserError: if the file cannot be read, or names another sample or one twice.
    """
    found: dict[str, str] = dict.fromkeys(ids, "")
    seen = set[str]()
    try:
        with opened(path) as file:
            lines = CsvLines(file)
            if missing := [name for name in ("id", "text") if name not in lines.header]:
                raise UserError(f"dataset.texts: {path} has no column {missing[0]!r}; it should have id and text")
            for number, row in lines:
                one = row["id"].strip()
                if one not in found or one in seen:
                    reason = "stands there twice" if one in seen else f"is none of {ids[0]} .. {ids[-1]}"
                    raise UserError(f"dataset.texts: line {number} of {path}: id {row['id']!r} {reason}")
                seen.add(one)
                found[one] = row["text"]
    except (OSError, UnicodeError, csv.Error, ValueError) as error:
        begins = FROM_ROOT if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"dataset.texts: {path} cannot be read ({error}); it should be a CSV file{begins}") from error
    return [*found.values()]
