"""Sentences about agreement and ranks, shared by all formats."""

from __future__ import annotations

from collections import Counter

from flnl.console.words import counted
from flnl.core.together import together
from flnl.instruments.tables.render.agreement import FEWEST_METHODS, Agreement
from flnl.instruments.tables.render.ranking import Ranking


def pieces(sentence: str) -> list[tuple[str, bool]]:
    """The parts of a sentence in order, and whether each is code, which stands between backticks in the sentence.

    >>> pieces("Chosen by `flnl tune`.")
    [('Chosen by ', False), ('flnl tune', True), ('.', False)]
    """
    return [(part, i % 2 == 1) for i, part in enumerate(sentence.split("`")) if part]


def coefficient(one: Agreement) -> str:
    """Spearman's coefficient, or why there is none."""
    if one.coefficient is not None:
        return decimals(one.coefficient)
    if len(one.methods) < FEWEST_METHODS:
        return f"fewer than {FEWEST_METHODS} methods"
    return f"all of {' and '.join(one.tied)} tied"


def decimals(value: float) -> str:
    """Two decimals, with a minus sign."""
    return f"{value:.2f}".replace("-", "−")


def of_column(one: Agreement) -> str:
    """The compared column, with the paper's column if its name differs."""
    return one.column if one.column == one.of else f"{one.column}, the paper's {one.of}"


def reversals(one: Agreement) -> str:
    """The pairs of opposite order, in each first the method that the paper ranks higher."""
    if not one.reversed:
        return f"none of {one.pairs}"
    return f"{len(one.reversed)} of {one.pairs}: " + ", ".join(f"{a} / {b}" for a, b in one.reversed)


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
    tables = together((setting.table, setting.column) for setting in ranking.settings)
    listed = "; ".join(f"{table} ({', '.join(columns)})" for table, columns in tables.items())
    alike = " They share data, and so are not independent." if len(ranking.settings) > 1 else ""
    return f"{counted(len(ranking.settings), 'setting')}: {listed}.{alike}"
