"""Select rows and columns of tables by their labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from flnl.console.suggestions import closest
from flnl.core.errors import UserError
from flnl.instruments.tables.table import Table

MOST_LISTED = 12
"""A message lists at most this many labels."""


@dataclass(frozen=True)
class Selection:
    """Patterns of labels with ``*`` and ``?`` (``*LeNet-5``), without regard to case; none select everything."""

    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.rows or self.columns)

    def of(self, tables: Sequence[Table]) -> tuple[Table, ...]:
        """The tables with their selected rows and columns alone; a table without any is left out.

        Raises:
            UserError: if a pattern matches no label of any table, or no table has both a row and a column left.
        """
        for what, patterns, labels in (
            ("row", self.rows, [row.label for table in tables for row in table.rows]),
            ("column", self.columns, [column.label for table in tables for column in table.columns]),
        ):
            for pattern in patterns:
                if not any(_matches(label, (pattern,)) for label in labels):
                    raise UserError(f"{what}s={pattern}: {_no_match(pattern, what, list(dict.fromkeys(labels)))}")
        selected = tuple(one for one in map(self._narrowed, tables) if one.rows and one.columns)
        if not selected:
            raise UserError("no table has both one of these rows and one of these columns")
        return selected

    def _narrowed(self, table: Table) -> Table:
        rows = [i for i, row in enumerate(table.rows) if _matches(row.label, self.rows)]
        columns = [i for i, column in enumerate(table.columns) if _matches(column.label, self.columns)]
        return replace(
            table,
            rows=tuple(table.rows[i] for i in rows),
            columns=tuple(table.columns[i] for i in columns),
            cells=tuple(tuple(table.cells[i][j] for j in columns) for i in rows),
        )


def _matches(label: str, patterns: Sequence[str]) -> bool:
    """Whether one of the patterns, or none at all, matches. A bracket stands for itself: labels may have some."""
    return not patterns or any(fnmatchcase(label.lower(), pattern.lower().replace("[", "[[]")) for pattern in patterns)


def _no_match(pattern: str, what: str, labels: Sequence[str]) -> str:
    """The message for a pattern that matches none of ``labels``."""
    folded = {label.lower(): label for label in labels}
    if close := closest(pattern.lower(), folded):
        return f"no {what} of these tables has this label; did you mean {folded[close]}?"
    more = f" and {len(labels) - MOST_LISTED} more" if len(labels) > MOST_LISTED else ""
    return f"no {what} of these tables has this label; there are {', '.join(labels[:MOST_LISTED])}{more}"
