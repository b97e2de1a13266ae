"""CSV files that are safe to open in a spreadsheet, which would execute a cell that begins with ``=``."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
"""What a spreadsheet may read as the beginning of a formula, after any number of marks."""
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|inf|nan)")
MARK = "'"


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    r"""The rows as CSV, cells escaped by ``text_cell``; lines end with ``\n``, and cells may contain any character.

    >>> csv_text([["path", "share"], ["=a.png", -0.5], ["a\rb", None]])
    'path,share\n\'=a.png,-0.5\n"a\rb",\n'
    """
    lines: list[str] = []
    writer = csv.writer(
        _Lines(lines.append), lineterminator="\r\n"
    )  # it quotes \r, too, which readers take for a line end
    writer.writerows(["" if cell is None else text_cell(str(cell)) for cell in row] for row in rows)
    return "".join(lines)


@dataclass(frozen=True)
class _Lines:
    """A file for a writer of CSV, which writes a line at a time."""

    take: Callable[[str], object]

    def write(self, line: str) -> None:
        self.take(line.removesuffix("\r\n") + "\n")


def text_cell(text: str) -> str:
    """Escape ``text`` for a cell: a mark is put before what a spreadsheet might read as a formula.

    Numbers are unchanged. ``text_of`` removes the mark.

    >>> text_cell("=1+1"), text_cell("frog"), text_cell("a=b"), text_cell("-1.5e-07")
    ("'=1+1", 'frog', 'a=b', '-1.5e-07')
    """
    return MARK + text if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def text_of(cell: str) -> str:
    """The text of a cell that ``text_cell`` has escaped.

    >>> [text_of(text_cell(text)) for text in ("=1", "'=1", "'-1", "'quoted'", "")]
    ['=1', "'=1", "'-1", "'quoted'", '']
    """
    return cell.removeprefix(MARK) if _FORMULA.match(cell) else cell
