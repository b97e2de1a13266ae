"""CSV files with a header, read so that messages about them can name the line."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from itertools import chain

SEPARATORS = (",", ";", "\t")
"""Between values. Spreadsheets write semicolons where a comma is part of a number."""
UTF16 = ("\udcff\udcfe", "\udcfe\udcff")
"""How a file begins that is UTF-16, if it is read as UTF-8 with ``errors="surrogateescape"``."""


class LineLengthError(ValueError):
    """A line has another number of values than the header."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line} has another number of values than the header")
        self.line = line


class CsvLines:
    """The rows of a CSV file after its header, each with the number of the line that it begins in, counted from 1.

    Values are separated by the first of ``SEPARATORS`` that the header has. Empty lines are skipped, and a quoted value
    may go over several lines; both count as an editor counts them. A spreadsheet may add columns without a name.

    Args:
        lines: the file, opened with ``newline=""``.
        skipinitialspace: whether spaces after a separator are no part of the value.

    Raises:
        csv.Error: if the header is no CSV, is in UTF-16, or has a column twice.
    """

    def __init__(self, lines: Iterable[str], *, skipinitialspace: bool = False) -> None:
        stream = iter(lines)
        first = next(stream, "")
        if first.startswith(UTF16):
            raise csv.Error("it is encoded as UTF-16: save it as CSV in UTF-8")
        separator = next((one for one in SEPARATORS if one in first), SEPARATORS[0])
        whole = chain([first], stream)
        self._reader = csv.reader(whole, delimiter=separator, skipinitialspace=skipinitialspace)
        self.header: list[str] = next(self._reader, [])
        if twice := [name for name in self.header if name and self.header.count(name) > 1]:
            raise csv.Error(f"it has the column {twice[0]!r} twice")

    def __iter__(self) -> Iterator[tuple[int, dict[str, str]]]:
        """The line and the values by column.

        Raises:
            LineLengthError: if a row has another number of values than the header.
            csv.Error: if the file is no CSV.
        """
        begin = self._reader.line_num + 1
        for row in self._reader:
            if row:
                if len(row) != len(self.header):
                    raise LineLengthError(begin)
                yield begin, dict(zip(self.header, row, strict=True))
            begin = self._reader.line_num + 1
