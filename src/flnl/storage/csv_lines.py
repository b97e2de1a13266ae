"""CSV files with a header, as spreadsheets and programs write them, read so that messages can name the line."""

from __future__ import annotations

import codecs
import csv
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TextIO

from flnl.core.special import refuse_special

SEPARATORS = (",", ";", "\t")
"""Between values. Spreadsheets write semicolons where a comma is part of a number."""
_STATED = re.compile(r"sep=(.)\s*", re.IGNORECASE)
"""A first line by which a file tells a spreadsheet its separator."""
UNNAMED = re.compile(r"(Unnamed: [0-9]+|__index_level_[0-9]+__)?")
"""How pandas calls the column of a frame's index."""
_BYTES = re.compile("[\udc80-\udcff]")
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class LineLengthError(ValueError):
    """A line has another number of values than the header."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line} has another number of values than the header")
        self.line = line


def opened(path: Path) -> TextIO:
    """Open a user's CSV file for ``CsvLines``: UTF-8, or UTF-16 if it is marked so; bytes that are neither are kept.

    Raises:
        OSError: if it cannot be opened, or is no regular file.
    """
    refuse_special(path)
    with path.open("rb") as file:
        marked = file.read(2) in _UTF16
    if marked:
        return path.open(newline="", encoding="utf-16")
    return path.open(newline="", encoding="utf-8-sig", errors="surrogateescape")  # names of files may be any bytes


def undecoded(text: str) -> bool:
    """Whether a text that ``opened`` has read has bytes that are no UTF-8, as names of files may have."""
    return _BYTES.search(text) is not None


class CsvLines:
    """The rows of a CSV file after its header, each with the number of the line that it begins in, counted from 1.

    Values are separated as a first line ``sep=;`` says, or else by the first of ``SEPARATORS`` that the header has.
    Lines without a value are skipped, and a quoted value may go over several lines; both count as an editor counts
    them. A spreadsheet may add columns without a name.

    Args:
        lines: the file, opened with ``newline=""``.
        skipinitialspace: whether spaces after a separator are no part of the value.

    Raises:
        csv.Error: if the header is no CSV, or has a column twice.
    """

    def __init__(self, lines: Iterable[str], *, skipinitialspace: bool = False) -> None:
        stream = iter(lines)
        first = next(stream, "")
        stated = _STATED.fullmatch(first)
        separator = stated[1] if stated else next((one for one in SEPARATORS if one in first), SEPARATORS[0])
        whole = chain([first], stream)
        self._reader = csv.reader(whole, delimiter=separator, skipinitialspace=skipinitialspace)
        if stated:
            next(self._reader)
        header = [name.strip() for name in next(self._reader, [])]
        self._width = len(header)
        while header and not header[-1]:
            header.pop()
        self.header: list[str] = header
        if twice := [name for name in header if name and header.count(name) > 1]:
            raise csv.Error(f"it has the column {twice[0]!r} twice")

    def __iter__(self) -> Iterator[tuple[int, dict[str, str]]]:
        """The line and the values by column.

        Raises:
            LineLengthError: if a row has another number of values than the header.
            csv.Error: if the file is no CSV.
        """
        begin = self._reader.line_num + 1
        for row in self._reader:
            if any(map(str.strip, row)):
                if len(row) < len(self.header) or any(map(str.strip, row[self._width :])):
                    raise LineLengthError(begin)
                yield begin, dict(zip(self.header, row, strict=False))
            begin = self._reader.line_num + 1
