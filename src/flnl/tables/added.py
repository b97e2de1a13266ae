"""Rows of the user's own in the papers' tables, in the settings of their columns."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flnl.config.folders import search_path
from flnl.config.override_text import key_of, value_of
from flnl.core.errors import UserError
from flnl.tables.load import check_keys
from flnl.tables.table import Row, Table

HOW = "as in add='method=mine', or with a label add='Mine, λ=2: method=mine method.lam=2'"


def row(text: str, folders: Sequence[Path]) -> Row:
    """The row that an option ``add`` describes: overrides, after a label if there is one.

    Args:
        text: what the user wrote.
        folders: folders of configuration files that the overrides may name.

    Raises:
        UserError: if it is no list of overrides, or sets a key that no row sets.

    >>> row("Mine, λ=2: method=mine method.lam=2", []).overrides
    ('method=mine', 'method.lam=2')
    >>> row("method=mine method.lam=2", []).label
    'mine'
    """
    before, colon, after = text.partition(": ")
    labelled = bool(colon) and "{" not in before
    try:
        overrides = shlex.split(after if labelled else text)
    except ValueError as error:
        raise UserError(f"add={text}: {error}; {HOW}") from None
    if not overrides or (wrong := next((one for one in overrides if "=" not in one), None)):
        raise UserError(f"add={text}: {f'{wrong} is no override' if overrides else 'no override'}; {HOW}")
    check_keys(overrides, f"add={text}: ")
    methods = [value_of(one) for one in overrides if key_of(one) == "method"]
    label = before.strip() if labelled else methods[-1] if methods else " ".join(overrides)
    return Row(label, label, (*search_path(folders), *overrides), None)


def with_rows(table: Table, rows: Sequence[Row]) -> Table:
    """The table with ``rows`` below its own; the paper has no numbers for them.

    Raises:
        UserError: if two rows would have the same label.
    """
    labels = [one.label.lower() for one in (*table.rows, *rows)]
    if twice := next((one.label for one in rows if labels.count(one.label.lower()) > 1), None):
        raise UserError(
            f"add: {table.name} would have two rows that are called {twice}; give yours another label, "
            f"add='My {twice}: ...'"
        )
    empty = (None,) * len(table.columns)
    return replace(table, rows=(*table.rows, *rows), cells=(*table.cells, *(empty for _ in rows)))
