"""Rank methods over all settings of a paper, and say what a ranking rests on."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flnl.console.ties import compared
from flnl.console.words import counted
from flnl.core.grouping import group_by_key
from flnl.instruments.compare import ranking as compare
from flnl.instruments.tables.results import Filled
from flnl.instruments.tables.table import Row, Table


@dataclass(frozen=True)
class Setting(compare.Setting):
    """A column of a table of accuracies. A method has a number if all requested seeds have run."""

    table: str  # "Table 2"
    papers: Mapping[str, Sequence[float]]  # one number per column of the paper that it merges, in their order


Ranking = compare.Ranking[Setting]


def ranking(tables: Sequence[Filled]) -> Ranking | None:
    """Rank the methods over a paper's tables of accuracies; None if no setting has two methods."""
    return compare.ranked([setting for one in tables if is_ranked(one.table) for setting in _settings(one)])


def papers_mean_ranks(ranking: Ranking) -> dict[str, float] | None:
    """Mean ranks of the paper's numbers, over all its columns that the settings merge; None if one is missing.

    Methods of which the paper has no number, such as the user's own, are left out.
    """
    methods = [m for m in ranking.methods if any(np.isfinite(setting.papers[m]).any() for setting in ranking.settings)]
    columns = [
        [setting.papers[m][k] for m in methods]
        for setting in ranking.settings
        for k in range(len(setting.papers[ranking.methods[0]]))
    ]
    if not methods or not columns or not np.isfinite(columns).all():
        return None
    return dict(zip(methods, compare.ranks(np.array(columns)).mean(0).tolist(), strict=True))


def left_out(ranking: Ranking) -> list[str]:
    """Methods and settings that a ranking excludes, with the reasons."""
    lines = []
    if ranking.without_methods:
        lines.append(f"Methods that lack a number in one of these settings: {', '.join(ranking.without_methods)}.")
    if ranking.without_settings:
        tables = Counter(setting.table for setting in ranking.without_settings)
        columns = ", ".join(f"{counted(n, 'column')} of {table}" for table, n in tables.items())
        lines.append(f"Settings in which one of these methods lacks a number: {columns}.")
    if ranking.repeated:
        columns = counted(ranking.repeated, "column")
        lines.append(f"Not counted again: {columns} with another's runs, of all or most methods.")
    return lines


def rests_on(ranking: Ranking) -> str:
    """The settings that a ranking is based on, by table."""
    tables = group_by_key((setting.table, setting.column) for setting in ranking.settings)
    listed = "; ".join(f"{table} ({', '.join(columns)})" for table, columns in tables.items())
    alike = " They share data, and so are not independent." if len(ranking.settings) > 1 else ""
    return f"{counted(len(ranking.settings), 'setting')}: {listed}.{alike}"


def is_ranked(table: Table) -> bool:
    """Whether the table is one of methods' accuracies, whose columns are settings of a ranking."""
    return not table.ablation and "accuracy" in table.metric.name and table.metric.higher_is_better is True


def _settings(filled: Filled) -> list[Setting]:
    names = _methods(filled.table.rows)
    settings = []
    for j, column in enumerate(filled.columns):
        cells = {name: filled.cells[i][j] for i, name in names.items()}
        whole = {name: cell for name, cell in cells.items() if cell.sort_key is not None}
        ours = {name: compared(mean) for name, cell in whole.items() if (mean := cell.number) is not None}
        settings.append(
            Setting(
                column.label,
                ours,
                {m: tuple(str(run.folder) for run in cells[m].runs) for m in ours},
                filled.table.place,
                {m: [float("nan") if number is None else number.mean for number in cells[m].papers] for m in ours},
            )
        )
    return settings


def _methods(rows: Sequence[Row]) -> dict[int, str]:
    """The row of each method, by index: its only row or, among variants, the one labelled with the method's name."""
    return {
        i: row.method
        for i, row in enumerate(rows)
        if row.method and [other for other in rows if other.method == row.method and _plain(other, rows)] == [row]
    }


def _plain(row: Row, rows: Sequence[Row]) -> bool:
    return row.label == row.method or [other.method for other in rows].count(row.method) == 1
