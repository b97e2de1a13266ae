"""Tables in GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_BAR = re.compile(r"(?<!\\)\|")


def row(cells: Iterable[str]) -> str:
    r"""A row of cells that are Markdown; a bar that would end its cell is escaped.

    >>> row(["a|b", "c"])
    '| a\\|b | c |'
    """
    return "| " + " | ".join(_BAR.sub(r"\|", cell) for cell in cells) + " |"


def grid(rows: Iterable[Sequence[str]]) -> str:
    """A table, whose second row tells how its columns are aligned."""
    return "\n".join(map(row, rows))
