"""Keys and what they mean, as a table on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flnl.config.meaning import Meaning
from flnl.console.terminal import cell

if TYPE_CHECKING:
    from rich.table import Table


def table(found: Iterable[Meaning]) -> Table:
    """Two columns: the key with its value, above the part's key that it is short for; what it means and may be."""
    from rich.table import Table
    from rich.text import Text

    rows = Table(box=None, pad_edge=False, show_header=False)
    rows.add_column(overflow="fold")
    rows.add_column(overflow="fold")
    for one in found:
        key = [
            cell(f"{one.key}={one.value}", "bold"),
            *([cell(f"  {one.stands_for}", "dim")] if one.stands_for else []),
        ]
        what = [cell(text, style) for text, style in ((one.comment, ""), (one.allowed, "dim")) if text]
        rows.add_row(Text("\n").join(key), Text("\n").join(what))
    return rows
