"""Rows of the user's own in the papers' tables, in the settings of their columns."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flnl.config.folders import SEARCH_PATH, refuse_shadowed, search_path
from flnl.config.override_text import key_of, value_of
from flnl.core.errors import UserError
from flnl.instruments.tables.load import check_keys
from flnl.instruments.tables.table import Column, Row, Table

HOW = "as in add='method=mine', or with a label add='Mine, λ=2: method=mine method.lam=2'"
OVERRIDE = re.compile(r"[+~\w./@]+=.*", re.DOTALL)
SETTING = ("experiment", "dataset", "partition", "noise")
"""Groups that the columns of a table choose, or their experiment; a row of the user's leaves them alone."""


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
    label, overrides = _divided(text)
    check_keys(overrides, f"add={text}: ")
    for one in overrides:
        if key_of(one).partition(".")[0] in SETTING:
            raise UserError(f"add={text}: {one} is for the columns to say: put it into a table of your own")
        if key_of(one) == SEARCH_PATH:
            raise UserError(f"add={text}: name the folder with --config-dir in place of {one}")
    methods = [value_of(one) for one in overrides if key_of(one) == "method"]
    label = label or (methods[-1] if methods else " ".join(overrides))
    return Row(label, label, (*search_path([folder.resolve() for folder in folders]), *overrides), None, own=True)


def _divided(text: str) -> tuple[str, list[str]]:
    """The label of a row, empty where it has none, and its overrides.

    Raises:
        UserError: if no overrides can be read.
    """
    if (whole := _overrides(text)) is not None:
        return "", whole
    for colon in re.finditer(": ", text):
        label, rest = text[: colon.start()].strip(), _overrides(text[colon.end() :])
        if label and rest is not None:
            return label, rest
    raise UserError(f"add={text}: give overrides, {HOW}")


def _overrides(text: str) -> list[str] | None:
    """The words of ``text`` if they are overrides, one or more; else None."""
    try:
        words = shlex.split(text)
    except ValueError:
        return None
    return words if words and all(OVERRIDE.fullmatch(word) for word in words) else None


def check_folder(folder: Path) -> None:
    """Check a folder of configuration files for rows of the user's.

    Raises:
        UserError: if it is none, or has a file with the name of one of this package, which would be found first.
    """
    if not folder.is_dir():
        raise UserError(f"--config-dir {folder}: give a folder with the layout of conf/")
    refuse_shadowed(folder)


def check_settings(row: Row, column: Column) -> None:
    """Check that a row leaves the setting of a column alone.

    Raises:
        UserError: if both set a key.
    """
    own = [*map(key_of, row.overrides)]
    if both := next((one for one in column.overrides if key_of(one) in own), None):
        raise UserError(f"the column sets {both}; put your value into a table of your own")


def with_rows(table: Table, rows: Sequence[Row], *, all_of_them: bool) -> Table:
    """The table with ``rows`` below its own; the paper has no numbers for them.

    Args:
        table: the table.
        rows: the user's rows.
        all_of_them: whether every row must fit; if not, those are left out whose label the table has already.

    Raises:
        UserError: if a row must fit and does not.
    """
    labels = [one.label.lower() for one in table.rows]
    fitting = [one for one in rows if one.label.lower() not in labels]
    if all_of_them and len(fitting) < len(rows):
        name = next(one.label for one in rows if one not in fitting)
        raise UserError(f"add: {table.name} has a row {name} already; give yours another label, add='My {name}: ...'")
    if not fitting:
        return table
    empty = (None,) * len(table.columns)
    return replace(table, rows=(*table.rows, *fitting), cells=(*table.cells, *(empty for _ in fitting)))
