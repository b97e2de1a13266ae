"""Rank methods over all settings of a paper: Friedman's test and Nemenyi's critical difference (Demšar, JMLR 2006)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from flnl.core.ties import compared
from flnl.tables.render.sheet import counted
from flnl.tables.results import Filled
from flnl.tables.table import Row, Table

LEVEL = 0.05
"""Significance level."""
FEWEST_METHODS, FEWEST_SETTINGS = 3, 5
"""Friedman's test compares three or more methods. Below five settings its chi-square approximation is poor, and with
three methods in two settings the critical difference exceeds any possible difference of mean ranks."""


@dataclass(frozen=True)
class Setting:
    """A column of a table of accuracies: the methods' numbers and the runs behind them.

    A method has a number if all requested seeds have run.
    """

    table: str  # "Table 2"
    column: str  # "ρ=0.6 τ=0.5"
    ours: Mapping[str, float]
    papers: Mapping[str, Sequence[float]]  # one number per column of the paper that it merges, in their order
    runs: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True)
class Ranking:
    """A set of methods, the settings in which all of them have a number, and what was left out.

    No number is imputed. Of all sets of methods (three or more, if that leaves enough settings), the chosen one is
    complete in the most settings, and among those the largest. Columns with the same runs count as one setting.
    Nemenyi's test follows Friedman's: it needs no more settings, whereas signed-rank tests with Holm's correction
    cannot reach 5 % below six settings, however clear the differences are. Its critical difference is the same for
    all pairs, so the diagram shows it as a length. Settings of one paper share data sets, so the p-value is optimistic.
    """

    paper: str
    methods: tuple[str, ...]  # in the order of the tables
    settings: tuple[Setting, ...]
    without_methods: tuple[str, ...]
    without_settings: tuple[Setting, ...]
    repeated: int  # columns with the same runs as another

    @property
    def too_few(self) -> str | None:
        """Why there is no test; None if there is one."""
        methods, settings = len(self.methods), len(self.settings)
        if methods >= FEWEST_METHODS and settings >= FEWEST_SETTINGS:
            return None
        return (
            f"the largest complete part of these tables has {methods} methods in {counted(settings, 'setting')}; the "
            f"test takes {FEWEST_METHODS} methods and {FEWEST_SETTINGS} settings at least"
        )

    @cached_property
    def ranks(self) -> NDArray[np.float64]:
        """Ranks of our numbers, 1 is best, ties at their mean rank; shape [settings, methods]."""
        return np.array([rankdata([-setting.ours[m] for m in self.methods]) for setting in self.settings])

    @property
    def mean_ranks(self) -> dict[str, float]:
        """Mean ranks over settings, the best method first."""
        means = dict(zip(self.methods, self.ranks.mean(0).tolist(), strict=True))
        return dict(sorted(means.items(), key=lambda item: item[1]))

    @property
    def papers_mean_ranks(self) -> dict[str, float] | None:
        """Mean ranks of the paper's numbers, over all its columns that the settings merge; None if one is missing.

        Methods of which the paper has no number, such as the user's own, are left out.
        """
        methods = [m for m in self.methods if any(np.isfinite(setting.papers[m]).any() for setting in self.settings)]
        columns = [
            [setting.papers[m][k] for m in methods]
            for setting in self.settings
            for k in range(len(setting.papers[self.methods[0]]))
        ]
        if not methods or not columns or not np.isfinite(columns).all():
            return None
        ranks = rankdata(-np.array(columns), axis=1).mean(0)
        return dict(zip(methods, ranks.tolist(), strict=True))

    @cached_property
    def friedman(self) -> tuple[float, float]:
        """Friedman's statistic, corrected for ties, and its chi-square p-value; 0 and 1 if all ranks are tied."""
        if (self.ranks == self.ranks[0, 0]).all():
            return 0.0, 1.0
        test = friedmanchisquare(*self.ranks.T)
        return float(test.statistic), float(test.pvalue)

    @property
    def significant(self) -> bool:
        """Whether Friedman's test finds a difference; only then are pairs compared."""
        return self.friedman[1] < LEVEL

    @property
    def critical_difference(self) -> float:
        """The difference of mean ranks that is significant."""
        return critical_difference(len(self.methods), len(self.settings))

    @property
    def apart(self) -> list[tuple[str, str]]:
        """Pairs that differ significantly, the better one first."""
        ranks = self.mean_ranks
        if not self.significant:
            return []
        return [(a, b) for a, b in combinations(ranks, 2) if ranks[b] - ranks[a] > self.critical_difference]


def critical_difference(methods: int, settings: int, level: float = LEVEL) -> float:
    """Nemenyi's critical difference of k methods in N settings (Demšar 2006, Sec. 3.2.2).

    It is ``q_level,k sqrt(k (k + 1) / (6 N))``.
    """
    q = float(studentized_range.ppf(1 - level, methods, np.inf)) / 2**0.5
    return float(q * np.sqrt(methods * (methods + 1) / (6 * settings)))


def ranking(paper: str, tables: Sequence[Filled]) -> Ranking | None:
    """Rank the methods over a paper's tables of accuracies; None if no setting has two methods."""
    settings = [s for one in tables if is_ranked(one.table) for s in _settings(one) if len(s.ours) > 1]
    if not settings:
        return None
    methods, chosen, repeated = max(
        ((methods, *_distinct(settings, methods)) for methods in _sets(settings)),
        key=lambda one: (
            len(one[0]) >= FEWEST_METHODS and len(one[1]) >= FEWEST_SETTINGS,
            len(one[1]),
            len(one[0]),
            one[0],
        ),
    )
    every = dict.fromkeys(m for setting in settings for m in setting.ours)
    return Ranking(
        paper,
        tuple(m for m in every if m in methods),
        tuple(chosen),
        tuple(m for m in every if m not in methods),
        tuple(setting for setting in settings if not set(methods) <= set(setting.ours)),
        repeated,
    )


def is_ranked(table: Table) -> bool:
    """Whether the table is one of accuracies, whose columns are settings of a ranking."""
    return "accuracy" in table.metric.name and table.metric.higher_is_better is True


def _sets(settings: Sequence[Setting]) -> list[tuple[str, ...]]:
    """All intersections of two or more methods over some of the settings, each sorted."""
    single = {frozenset(setting.ours) for setting in settings}
    sets, fresh = set(single), set(single)
    while fresh:
        fresh = {a & b for a in fresh for b in single} - sets
        sets |= fresh
    return sorted(tuple(sorted(one)) for one in sets if len(one) > 1)


def _distinct(settings: Sequence[Setting], methods: Sequence[str]) -> tuple[list[Setting], int]:
    """The settings that have all ``methods``, and how many were dropped because their runs repeat another's."""
    whole = [setting for setting in settings if set(methods) <= set(setting.ours)]
    chosen: dict[tuple[tuple[str, ...], ...], Setting] = {}
    for setting in whole:
        chosen.setdefault(tuple(setting.runs[m] for m in methods), setting)
    return list(chosen.values()), len(whole) - len(chosen)


def _settings(filled: Filled) -> list[Setting]:
    names = _methods(filled.table.rows)
    settings = []
    for j, column in enumerate(filled.columns):
        cells = {name: filled.cells[i][j] for i, name in names.items()}
        whole = {name: cell for name, cell in cells.items() if cell.standing is not None}
        ours = {name: compared(mean) for name, cell in whole.items() if (mean := cell.number) is not None}
        settings.append(
            Setting(
                f"Table {filled.table.number}",
                column.label,
                ours,
                {m: [float("nan") if number is None else number.mean for number in cells[m].papers] for m in ours},
                {m: tuple(str(run.folder) for run in cells[m].runs) for m in ours},
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
