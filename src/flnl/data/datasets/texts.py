"""Texts of samples, in a CSV file beside their features, for people to read."""

import csv
from collections.abc import Sequence
from pathlib import Path

from flnl.core.errors import UserError
from flnl.data.datasets.label_file import FROM_ROOT
from flnl.storage.csv_lines import CsvLines, opened


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
