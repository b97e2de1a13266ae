"""Methods over all settings of a paper: Friedman's test, and Nemenyi's critical difference (Demšar, JMLR 2006)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from flnl.tables.render.sheet import counted
from flnl.tables.results import Filled
from flnl.tables.table import Row

LEVEL = 0.05
"""Of significance."""
FEWEST_METHODS, FEWEST_SETTINGS = 3, 5
"""Friedman's test is of three or more. Below five settings its chi-square is a poor approximation, and three methods in
two settings have a critical difference that is larger than any difference of their mean ranks can be."""


@dataclass(frozen=True)
class Setting:
    """A column of a table of accuracies: the numbers of the methods in it, and the runs that they are of.

    A method has a number where all seeds that were asked for have run.
    """

    table: str  # "Table 2"
    column: str  # "ρ=0.6 τ=0.5"
    ours: Mapping[str, float]
    papers: Mapping[str, Sequence[float]]  # in each of the paper's columns that it stands for, in their order
    runs: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Ranking:
    """The methods in the settings that all of them have, and what was left out for that.

    No number is made up: of all sets of methods (three or more, if that leaves enough settings) it is the one that
    most settings have in full, and of such sets the largest. Columns that rest on the same runs are one setting.
    Nemenyi's test follows Friedman's: it needs no more settings than that, where signed ranks corrected by Holm cannot
    reach the level of 5 % below six settings however clear the differences; and the difference that it asks for is the
    same for every pair, so the diagram shows it as a length. Settings of one paper share data sets, so the p-value is
    on the bold side.
    """

    paper: str
    methods: tuple[str, ...]  # as tables name them
    settings: tuple[Setting, ...]
    without_methods: tuple[str, ...]
    without_settings: tuple[Setting, ...]
    repeated: int  # columns whose runs are those of another

    @property
    def too_few(self) -> str | None:
        """Why there is no test; None where there is one."""
        methods, settings = len(self.methods), len(self.settings)
        if methods >= FEWEST_METHODS and settings >= FEWEST_SETTINGS:
            return None
        return (
            f"the largest complete part of these tables has {methods} methods in {counted(settings, 'setting')}; the "
            f"test takes {FEWEST_METHODS} methods and {FEWEST_SETTINGS} settings at least"
        )

    @cached_property
    def ranks(self) -> NDArray[np.float64]:
        """Of our numbers, 1 the best, ties at their mean rank; [settings, methods]."""
        return np.array([rankdata([-setting.ours[m] for m in self.methods]) for setting in self.settings])

    @property
    def mean_ranks(self) -> dict[str, float]:
        """Over settings, the best method first."""
        found = dict(zip(self.methods, self.ranks.mean(0).tolist(), strict=True))
        return dict(sorted(found.items(), key=lambda item: item[1]))

    @property
    def papers_mean_ranks(self) -> dict[str, float] | None:
        """The same of the paper's numbers, over the columns that the settings stand for; None where a number lacks."""
        columns = [
            [setting.papers[m][k] for m in self.methods]
            for setting in self.settings
            for k in range(len(setting.papers[self.methods[0]]))
        ]
        if not columns or not np.isfinite(columns).all():
            return None
        ranks = rankdata(-np.array(columns), axis=1).mean(0)
        return dict(zip(self.methods, ranks.tolist(), strict=True))

    @cached_property
    def friedman(self) -> tuple[float, float]:
        """The statistic, corrected for ties, and its p-value by chi-square; 0 and 1 where all are tied."""
        if (self.ranks == self.ranks[0, 0]).all():
            return 0.0, 1.0
        found = friedmanchisquare(*self.ranks.T)
        return float(found.statistic), float(found.pvalue)

    @property
    def significant(self) -> bool:
        """Whether Friedman's test finds a difference at all; pairs are told apart only then."""
        return self.friedman[1] < LEVEL

    @property
    def critical_difference(self) -> float:
        """By which mean ranks must differ."""
        return critical_difference(len(self.methods), len(self.settings))

    @property
    def apart(self) -> list[tuple[str, str]]:
        """Pairs that differ significantly, the better one first."""
        ranks = self.mean_ranks
        if not self.significant:
            return []
        return [(a, b) for a, b in combinations(ranks, 2) if ranks[b] - ranks[a] > self.critical_difference]


def critical_difference(methods: int, settings: int, level: float = LEVEL) -> float:
    """Nemenyi's: ``q_level,k sqrt(k (k + 1) / (6 N))`` of k methods in N settings (Demšar 2006, Sec. 3.2.2)."""
    q = float(studentized_range.ppf(1 - level, methods, np.inf)) / 2**0.5
    return float(q * np.sqrt(methods * (methods + 1) / (6 * settings)))


def ranking(paper: str, tables: Sequence[Filled]) -> Ranking | None:
    """The methods over the tables of a paper whose metric is an accuracy; None where no setting has two methods."""
    accuracies = [t for t in tables if "accuracy" in t.table.metric.name and t.table.metric.higher_is_better]
    found = [s for table in accuracies for s in _settings(table) if len(s.ours) > 1]
    if not found:
        return None
    methods, chosen, repeated = max(
        ((methods, *_distinct(found, methods)) for methods in _sets(found)),
        key=lambda one: (
            len(one[0]) >= FEWEST_METHODS and len(one[1]) >= FEWEST_SETTINGS,
            len(one[1]),
            len(one[0]),
            one[0],
        ),
    )
    every = dict.fromkeys(m for setting in found for m in setting.ours)
    return Ranking(
        paper,
        tuple(m for m in every if m in methods),
        tuple(chosen),
        tuple(m for m in every if m not in methods),
        tuple(setting for setting in found if not set(methods) <= set(setting.ours)),
        repeated,
    )


def _sets(settings: Sequence[Setting]) -> list[tuple[str, ...]]:
    """Sets of two or more methods that some settings have in common, each sorted."""
    own = {frozenset(setting.ours) for setting in settings}
    found, fresh = set(own), set(own)
    while fresh:
        fresh = {a & b for a in fresh for b in own} - found
        found |= fresh
    return sorted(tuple(sorted(one)) for one in found if len(one) > 1)


def _distinct(settings: Sequence[Setting], methods: Sequence[str]) -> tuple[list[Setting], int]:
    """The settings that have all ``methods``, each of the same runs once, and how many were left out for that."""
    whole = [setting for setting in settings if set(methods) <= set(setting.ours)]
    chosen: dict[tuple[tuple[str, ...], ...], Setting] = {}
    for setting in whole:
        chosen.setdefault(tuple(setting.runs[m] for m in methods), setting)
    return list(chosen.values()), len(whole) - len(chosen)


def _settings(filled: Filled) -> list[Setting]:
    names = _methods(filled.table.rows)
    found = []
    for j, column in enumerate(filled.columns):
        cells = {name: filled.cells[i][j] for i, name in names.items()}
        whole = {name: cell for name, cell in cells.items() if cell.standing is not None}
        ours = {name: mean for name, cell in whole.items() if (mean := cell.mean) is not None}
        found.append(
            Setting(
                f"Table {filled.table.number}",
                column.label,
                ours,
                {m: [float("nan") if number is None else number.mean for number in cells[m].papers] for m in ours},
                {m: tuple(str(run.folder) for run in cells[m].runs) for m in ours},
            )
        )
    return found


def _methods(rows: Sequence[Row]) -> dict[int, str]:
    """The rows that stand for a method: its only row or, among its variants, the one that bears its plain name."""
    return {
        i: row.method
        for i, row in enumerate(rows)
        if row.method and [other for other in rows if other.method == row.method and _plain(other, rows)] == [row]
    }


def _plain(row: Row, rows: Sequence[Row]) -> bool:
    return row.label == row.method or [other.method for other in rows].count(row.method) == 1
