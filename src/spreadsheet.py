"""Text in CSV files that people open in a spreadsheet, which would run a cell beginning with ``=`` as a formula."""

from __future__ import annotations

import re

_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
"""What a spreadsheet may take for the beginning of a formula, behind any number of marks."""
_NUMBER = re.compile(r"[+-]?[0-9]+(\.[0-9]+)?")
MARK = "'"


def text_cell(text: str) -> str:
    """``text`` as a cell that no spreadsheet takes for a formula: a mark goes before one that might be.

    For names of files, classes and the like; numbers are written as they are. ``text_of`` takes the mark away again.

    >>> text_cell("=1+1"), text_cell("frog"), text_cell("a=b"), text_cell("-1")
    ("'=1+1", 'frog', 'a=b', '-1')
    """
    return MARK + text if _FORMULA.match(text) and not _NUMBER.fullmatch(text) else text


def text_of(cell: str) -> str:
    """The text that ``text_cell`` made a cell of.

    >>> [text_of(text_cell(text)) for text in ("=1", "'=1", "'-1", "'quoted'", "")]
    ['=1', "'=1", "'-1", "'quoted'", '']
    """
    return cell.removeprefix(MARK) if _FORMULA.match(cell) else cell
