"""Features of samples, such as embeddings that a foundation model gave: one ``.npz`` file of vectors and labels."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.ranges import PathText, PositiveCount
from flnl.data.dataset import Dataset
from flnl.data.datasets.arrays import classes_of, labels_of, load, owners_of, texts_of
from flnl.data.datasets.assemble import assemble
from flnl.data.datasets.download import expand
from flnl.data.datasets.label_file import FROM_ROOT, LabelFile, choose_labels, read_label_file
from flnl.data.datasets.rows import RowTexts, Scaling, prepared, stored
from flnl.data.votes import Vote
from flnl.storage.csv_lines import CsvLines, opened


@dataclass(frozen=True)
class Features:
    """``x_train``, ``x_test`` [N, D], ``y_train``, ``y_test``; and ``y_given``, ``clients``, ``classes`` if known.

    float16 and float32 are stored as they are. Labels, ``truth``, a label file and clients are those of
    ``dataset=arrays``. ``columns`` [D] names the numbers, for the page of an audit; ``texts`` is a CSV file with the
    columns id (a sample's position from 0) and text, which the page shows instead.
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
        arrays = load(path)
        train, test = (stored(arrays[name], f"dataset.file: {name} of {path}") for name in ("x_train", "x_test"))
        if train.shape != test.shape:
            raise UserError(
                f"dataset.file: x_train and x_test of {path} have {train.shape[0]} and {test.shape[0]} columns;"
                " they must agree"
            )
        classes = classes_of(arrays, path, more=self.labels is not None)
        count = len(train)
        y_train = labels_of(arrays, "y_train", count, classes, path) if "y_train" in arrays else None
        table = None
        if self.labels is not None:
            positions = tuple(str(i) for i in range(count))
            table = read_label_file(root / Path(self.labels).expanduser(), "id", positions, classes, self.vote)
        elif "y_given" in arrays:
            table = LabelFile(labels_of(arrays, "y_given", count, classes, path), None, None)
        truth, given = choose_labels(self.truth, "y_train", y_train, table, self.vote)
        owners = table.owners if table else None
        if owners is None and "clients" in arrays:
            owners = owners_of(arrays["clients"], count, path)
        names = [str(i) for i in range(train.shape[0])]
        if "columns" in arrays:
            names = texts_of(np.asarray(arrays["columns"]).reshape(-1), f"dataset.file: columns of {path}")
            if len(names) != train.shape[0]:
                raise UserError(f"dataset.file: {path} names {len(names)} columns of {train.shape[0]}")
        texts = None if self.texts is None else read_texts(root / Path(self.texts).expanduser(), count)
        return assemble(
            name=self.name,
            classes=classes,
            train=train,
            test=test,
            test_labels=labels_of(arrays, "y_test", len(test), classes, path),
            transform=prepared(train, self.normalize),
            truth=truth,
            given=given,
            owners=owners,
            people=table.people if table else None,
            texts=texts if texts is not None else RowTexts(train.pixels.numpy(), names),
            train_size=self.train_size,
            train_sample=self.train_sample,
            test_size=self.test_size,
        )


def read_texts(path: Path, count: int) -> Sequence[str]:
    """The text [count] of each sample: columns ``id``, a position from 0, and ``text``; "" where there is no line.

    Raises:
        UserError: if the file cannot be read, or names another sample or one twice.
    """
    found: dict[int, str] = {}
    try:
        with opened(path) as file:
            lines = CsvLines(file)
            if missing := [name for name in ("id", "text") if name not in lines.header]:
                raise UserError(f"dataset.texts: {path} has no column {missing[0]!r}; it should have id and text")
            for number, row in lines:
                position = int(row["id"]) if row["id"].strip().isdecimal() else -1
                if not 0 <= position < count or position in found:
                    reason = "stands there twice" if position in found else f"is none of 0..{count - 1}"
                    raise UserError(f"dataset.texts: line {number} of {path}: id {row['id']!r} {reason}")
                found[position] = row["text"]
    except (OSError, UnicodeError, csv.Error, ValueError) as error:
        begins = FROM_ROOT if isinstance(error, FileNotFoundError) else ""
        raise UserError(f"dataset.texts: {path} cannot be read ({error}); it should be a CSV file{begins}") from error
    return [found.get(i, "") for i in range(count)]
