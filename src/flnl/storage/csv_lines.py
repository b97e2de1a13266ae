"""CSV files with a header, read so that messages about them can name the line."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator


class LineLengthError(ValueError):
    """A line has another number of values than the header."""

    def __init__(self, line: int) -> None:
        super().__init__(f"line {line} has another number of values than the header")
        self.line = line


class CsvLines:
    """The rows of a CSV file after its header, each with the number of the line that it begins in, counted from 1.

    Empty lines are skipped, and a quoted value may go over several lines; both count as an editor counts them.

    Args:
        lines: the file, opened with ``newline=""``.
        skipinitialspace: whether spaces after a comma are no part of the value.
    """

    def __init__(self, lines: Iterable[str], *, skipinitialspace: bool = False) -> None:
        self._reader = csv.reader(lines, skipinitialspace=skipinitialspace)
        self.header: list[str] = next(self._reader, [])

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
