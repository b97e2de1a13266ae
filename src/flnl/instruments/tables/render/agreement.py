"""Rank agreement: whether our numbers order the methods as the paper's do, and how that is said in all formats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from flnl.instruments.tables.results import Filled
from flnl.instruments.tables.table import Row
from flnl.numerics.ranks import rank_correlation

FEWEST_METHODS = 3
"""A rank correlation of two methods can only be 1 or -1, so it is not reported."""


@dataclass(frozen=True)
class Agreement:
    """The order of the methods in a column of ours, compared with a column of the paper."""

    column: str
    of: str  # the paper's column
    methods: tuple[str, ...]  # those with the paper's number and ours, from all seeds
    coefficient: float | None  # Spearman's, in [-1, 1]; None for too few methods, or if one side is all tied
    reversed: tuple[tuple[str, str], ...]  # pairs of opposite order; first the method that the paper ranks higher
    tied: tuple[str, ...] = ()  # sides that are all tied: "ours", "the paper's"

    @property
    def pairs(self) -> int:
        """Number of pairs of methods."""
        return len(self.methods) * (len(self.methods) - 1) // 2


def agreements(filled: Filled) -> list[Agreement]:
    """Compare every column of the paper in which at least two methods have both numbers.

    A method that never reaches a target ranks behind all that do, in the paper and here. Metrics that are not ranked
    give an empty list.
    """
    higher = filled.table.metric.higher_is_better
    if higher is None:
        return []
    names = competitors(filled.table.rows)
    results = []
    for j, k in ((j, k) for j, which in enumerate(filled.of_paper) for k in which):
        both = [
            (name, sort_key, number.sort_key)
            for i, name in names.items()
            if (sort_key := filled.cells[i][j].sort_key) is not None
            and (number := filled.table.cells[i][k]) is not None
        ]
        if len(both) > 1:
            methods, *standings = zip(*both, strict=True)
            ours, papers = map(_places, standings)
            coefficient = spearman(ours, papers) if len(both) >= FEWEST_METHODS else None
            apart = _reversed(methods, ours, papers, higher=higher)
            tied = tuple(side for side, order in (("ours", ours), ("the paper's", papers)) if len(set(order)) == 1)
            columns = filled.columns[j].label, filled.table.columns[k].label
            results.append(Agreement(*columns, methods, coefficient, apart, tied))
    return results


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


def competitors(rows: Sequence[Row]) -> dict[int, str]:
    """The name of each row that is a method, by row index; its label if several rows are variants of one method."""
    times = Counter(row.method for row in rows)
    return {i: row.method if times[row.method] == 1 else row.label for i, row in enumerate(rows) if row.method}


def _places(keys: Sequence[tuple[int, float]]) -> list[float]:
    """Each sort key's place among the distinct ones, from 0."""
    order = sorted(set(keys))
    return [float(order.index(key)) for key in keys]


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """Spearman's rank correlation, ties at their mean rank; None if one side is all tied."""
    if len(set(one)) == 1 or len(set(other)) == 1:
        return None
    return rank_correlation(one, other)


def _reversed(
    methods: Sequence[str], ours: Sequence[float], papers: Sequence[float], *, higher: bool
) -> tuple[tuple[str, str], ...]:
    """Pairs in opposite order; a tie on either side does not count."""
    pairs = []
    for a, b in combinations(range(len(methods)), 2):
        if (ours[a] - ours[b]) * (papers[a] - papers[b]) < 0:
            ahead, behind = (a, b) if (papers[a] > papers[b]) == higher else (b, a)
            pairs.append((methods[ahead], methods[behind]))
    return tuple(pairs)
