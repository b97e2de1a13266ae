"""Rank methods over settings: Friedman's test and Nemenyi's critical difference (Demšar, JMLR 2006)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import friedmanchisquare, rankdata, studentized_range

from flnl.console.words import counted, probability
from flnl.instruments.compare.significance import LEVEL

FEWEST_METHODS, FEWEST_SETTINGS = 3, 5
"""Friedman's test compares three or more methods. Below five settings its chi-square approximation is poor, and with
three methods in two settings the critical difference exceeds any possible difference of mean ranks."""


@dataclass(frozen=True)
class Setting:
    """A column of accuracies: the methods' numbers and the runs behind them."""

    column: str  # "noise.rho=0.6"
    ours: Mapping[str, float]  # the larger, the better
    runs: Mapping[str, tuple[str, ...]]


S = TypeVar("S", bound=Setting)


@dataclass(frozen=True)
class Ranking(Generic[S]):
    """A set of methods, the settings in which all of them have a number, and what was left out.

    No number is imputed. Of all sets of methods (three or more, if that leaves enough settings), the chosen one is
    complete in the most settings, and among those the largest. Columns in which most methods have the same runs count
    as one setting.
    Nemenyi's test follows Friedman's: it needs no more settings, whereas signed-rank tests with Holm's correction
    cannot reach 5 % below six settings, however clear the differences are. Its critical difference is the same for
    all pairs, so the diagram shows it as a length. Settings that share data make the p-value optimistic.
    """

    methods: tuple[str, ...]  # in the order of the tables
    settings: tuple[S, ...]
    without_methods: tuple[str, ...]
    without_settings: tuple[S, ...]
    repeated: int  # columns in which most methods have the same runs as in another

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
        return ranks(np.array([[setting.ours[m] for m in self.methods] for setting in self.settings]))

    @property
    def mean_ranks(self) -> dict[str, float]:
        """Mean ranks over settings, the best method first."""
        means = dict(zip(self.methods, self.ranks.mean(0).tolist(), strict=True))
        return dict(sorted(means.items(), key=lambda item: item[1]))

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

    @property
    def verdict(self) -> str:
        """The results of the tests over all settings."""
        methods, settings = len(self.methods), len(self.settings)
        if self.too_few:
            return f"No test and no diagram: {self.too_few}."
        statistic, p = self.friedman
        head = (
            f"Friedman's test over {settings} settings and {methods} methods: χ² = {statistic:.2f}, {probability(p)}."
        )
        if not self.significant:
            return f"{head} No difference between methods is significant at the level {LEVEL}."
        tail = (
            f"By Nemenyi's test mean ranks that are {self.critical_difference:.2f} apart differ at the level {LEVEL}: "
            f"{len(self.apart)} of {methods * (methods - 1) // 2} pairs do."
        )
        return f"{head} {tail}"


def ranks(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """Ranks within each setting, 1 for the largest number, ties at their mean rank; of and in [settings, methods]."""
    return np.asarray(rankdata(-numbers, axis=1))


def critical_difference(methods: int, settings: int) -> float:
    """Nemenyi's critical difference of k methods in N settings (Demšar 2006, Sec. 3.2.2).

    It is at the level ``LEVEL``: ``q_level,k sqrt(k (k + 1) / (6 N))``.
    """
    q = float(studentized_range.ppf(1 - LEVEL, methods, np.inf)) / 2**0.5
    return float(q * np.sqrt(methods * (methods + 1) / (6 * settings)))


def ranked(settings: Sequence[S]) -> Ranking[S] | None:
    """Rank the methods over settings; None if no setting has two methods."""
    settings = [setting for setting in settings if len(setting.ours) > 1]
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
        tuple(m for m in every if m in methods),
        tuple(chosen),
        tuple(m for m in every if m not in methods),
        tuple(setting for setting in settings if not set(methods) <= set(setting.ours)),
        repeated,
    )


def _sets(settings: Sequence[Setting]) -> list[tuple[str, ...]]:
    """All intersections of two or more methods over some of the settings, each sorted."""
    single = {frozenset(setting.ours) for setting in settings}
    sets, fresh = set(single), set(single)
    while fresh:
        fresh = {a & b for a in fresh for b in single} - sets
        sets |= fresh
    return sorted(tuple(sorted(one)) for one in sets if len(one) > 1)


def _distinct(settings: Sequence[S], methods: Sequence[str]) -> tuple[list[S], int]:
    """The settings that have all ``methods``, and how many were dropped because their runs repeat another's."""
    whole = [setting for setting in settings if set(methods) <= set(setting.ours)]
    chosen: list[S] = []
    for setting in whole:
        if not any(_repeats(setting, earlier, methods) for earlier in chosen):
            chosen.append(setting)
    return chosen, len(whole) - len(chosen)


def _repeats(one: Setting, other: Setting, methods: Sequence[str]) -> bool:
    """Whether most methods have the same runs in both: then they are one setting, whatever a method's constant is."""
    return sum(one.runs[m] == other.runs[m] for m in methods) > len(methods) / 2
