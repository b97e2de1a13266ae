"""Whether our numbers order the methods as the paper's do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from scipy.stats import spearmanr

from flnl.tables.results import Filled
from flnl.tables.table import Row

FEWEST_METHODS = 3
"""Two methods can only agree or not; a coefficient over them says nothing."""


@dataclass(frozen=True)
class Agreement:
    """Our order of the methods in a column beside that in a column of the paper that it stands for."""

    column: str
    of: str  # the paper's column
    methods: tuple[str, ...]  # those with both numbers, ours of every seed
    coefficient: float | None  # Spearman's, in [-1, 1]; None for too few methods, or where one order is a single tie
    reversed: tuple[tuple[str, str], ...]  # pairs of opposite order, the one that the paper has ahead first
    tied: tuple[str, ...] = ()  # whose order is a single tie: "ours", "the paper's"

    @property
    def pairs(self) -> int:
        """Of methods."""
        return len(self.methods) * (len(self.methods) - 1) // 2


def agreements(filled: Filled) -> list[Agreement]:
    """One for each column of the paper in which two methods have both numbers; none of a metric that is not ranked.

    What never reaches a target is behind whatever does, in the paper as here.
    """
    metric = filled.table.metric
    if metric.higher_is_better is None:
        return []
    names = competitors(filled.table.rows)
    found = []
    for j, which in enumerate(filled.of_paper):
        for k in which:
            both = [
                (name, own, number.standing)
                for i, name in names.items()
                if (own := filled.cells[i][j].standing) is not None and (number := filled.table.cells[i][k]) is not None
            ]
            if len(both) > 1:
                methods, *standings = zip(*both, strict=True)
                ours, papers = map(_places, standings)
                found.append(
                    Agreement(
                        filled.columns[j].label,
                        filled.table.columns[k].label,
                        methods,
                        spearman(ours, papers) if len(both) >= FEWEST_METHODS else None,
                        _reversed(methods, ours, papers, higher=metric.higher_is_better),
                        tuple(
                            whose for whose, order in (("ours", ours), ("the paper's", papers)) if len(set(order)) == 1
                        ),
                    )
                )
    return found


def competitors(rows: Sequence[Row]) -> dict[int, str]:
    """By the index of each row that is a method, its name: the row's label where several rows are the same method."""
    times = Counter(row.method for row in rows)
    return {i: row.method if times[row.method] == 1 else row.label for i, row in enumerate(rows) if row.method}


def _places(standings: Sequence[tuple[int, float]]) -> list[float]:
    """Numbers of the same order."""
    order = sorted(set(standings))
    return [float(order.index(standing)) for standing in standings]


def spearman(one: Sequence[float], other: Sequence[float]) -> float | None:
    """The correlation of ranks, ties at their mean rank; None where one side is a single tie."""
    if len(set(one)) == 1 or len(set(other)) == 1:
        return None
    return float(spearmanr(one, other).statistic)


def _reversed(
    methods: Sequence[str], ours: Sequence[float], papers: Sequence[float], *, higher: bool
) -> tuple[tuple[str, str], ...]:
    """A tie on either side reverses nothing."""
    found = []
    for a, b in combinations(range(len(methods)), 2):
        if (ours[a] - ours[b]) * (papers[a] - papers[b]) < 0:
            ahead, behind = (a, b) if (papers[a] > papers[b]) == higher else (b, a)
            found.append((methods[ahead], methods[behind]))
    return tuple(found)
