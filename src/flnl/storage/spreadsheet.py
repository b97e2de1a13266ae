"""CSV files that people open in a spreadsheet, which would run a cell beginning with ``=`` as a formula."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
"""What a spreadsheet may take for the beginning of a formula, behind any number of marks."""
_NUMBER = re.compile(r"[+-]?([0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?|inf|nan)")
MARK = "'"


def csv_text(rows: Iterable[Iterable[object]]) -> str:
    r"""The rows as CSV, each cell by ``text_cell``: lines end with ``\n``, and a cell holds any character.

    >>> csv_text([["path", "share"], ["=a.png", -0.5], ["a\rb", None]])
    'path,share\n\'=a.png,-0.5\n"a\rb",\n'
    """
    line, lines = io.StringIO(newline=""), []
    writer = csv.writer(line, lineterminator="\r\n")  # it quotes what ends a line, and readers take \r for an end
    for row in rows:
        writer.writerow(["" if cell is None else text_cell(str(cell)) for cell in row])
        lines.append(line.getvalue().removesuffix("\r\n"))
        line.seek(0)
        line.truncate()
    return "".join(f"{one}\n" for one in lines)


def text_cell(text: str) -> str:
    """``text`` as a cell that no spreadsheet takes for a formula: a mark goes before one that might be.

    Numbers stay as they are. ``text_of`` takes the mark away again.

    >>> text_cell("=1+1"), text_cell("frog"), text_cell("a=b"), text_cell("-1.5e-07")
    ("'=1+1", 'frog', 'a=b', '-1.5e-07')
    """
    return MARK + text if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def text_of(cell: str) -> str:
    """The text that ``text_cell`` made a cell of.

    >>> [text_of(text_cell(text)) for text in ("=1", "'=1", "'-1", "'quoted'", "")]
    ['=1', "'=1", "'-1", "'quoted'", '']
    """
    return cell.removeprefix(MARK) if _FORMULA.match(cell) else cell
