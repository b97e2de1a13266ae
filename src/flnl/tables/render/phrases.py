"""Sentences on agreement and ranks that all formats share."""

from __future__ import annotations

from collections import Counter

from flnl.tables.render.agreement import FEWEST_METHODS, Agreement
from flnl.tables.render.ranking import LEVEL, Ranking
from flnl.tables.render.sheet import counted


def coefficient(one: Agreement) -> str:
    """Spearman's coefficient, or why there is none."""
    if one.coefficient is not None:
        return f"{one.coefficient:.2f}".replace("-", "−")
    if len(one.methods) < FEWEST_METHODS:
        return f"fewer than {FEWEST_METHODS} methods"
    return f"all of {' and '.join(one.tied)} tied"


def of_column(one: Agreement) -> str:
    """Which column is compared, and with which of the paper's where that bears another name."""
    return one.column if one.column == one.of else f"{one.column}, the paper's {one.of}"


def reversals(one: Agreement) -> str:
    """The pairs of opposite order, each with the one first that the paper has ahead."""
    if not one.reversed:
        return f"none of {one.pairs}"
    return f"{len(one.reversed)} of {one.pairs}: " + ", ".join(f"{a} / {b}" for a, b in one.reversed)


def verdict(found: Ranking) -> str:
    """What the tests over all settings of a paper found, and on what that rests."""
    methods, settings = len(found.methods), len(found.settings)
    if found.too_few:
        return f"No test and no diagram: {found.too_few}."
    statistic, p = found.friedman
    head = f"Friedman's test over {settings} settings and {methods} methods: χ² = {statistic:.2f}, {_p(p)}."
    if not found.significant:
        return f"{head} No difference between methods is shown at the level {LEVEL}, so no pair is told apart."
    tail = (
        f"By Nemenyi's test mean ranks that are {found.critical_difference:.2f} apart differ at the level {LEVEL}: "
        f"{len(found.apart)} of {methods * (methods - 1) // 2} pairs do."
    )
    return f"{head} {tail}"


def left_out(found: Ranking) -> list[str]:
    """What is not among the settings and methods of a ranking, and why."""
    lines = []
    if found.without_methods:
        lines.append(f"Methods that lack a number in one of these settings: {', '.join(found.without_methods)}.")
    if found.without_settings:
        tables = Counter(setting.table for setting in found.without_settings)
        told = ", ".join(f"{counted(n, 'column')} of {table}" for table, n in tables.items())
        lines.append(f"Settings in which one of these methods lacks a number: {told}.")
    if found.repeated:
        lines.append(f"Not counted again: {counted(found.repeated, 'column')} of the same runs as another.")
    return lines


def rests_on(found: Ranking) -> str:
    """The settings of a ranking, by table."""
    tables: dict[str, list[str]] = {}
    for setting in found.settings:
        tables.setdefault(setting.table, []).append(setting.column)
    told = "; ".join(f"{table} ({', '.join(columns)})" for table, columns in tables.items())
    alike = " They share data, and so are not independent." if len(found.settings) > 1 else ""
    return f"{counted(len(found.settings), 'setting')}: {told}.{alike}"


def _p(p: float) -> str:
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
