"""Who is better than whom, over all tasks and seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from flnl.instruments.benchmark.definition import Benchmark, Task
from flnl.instruments.benchmark.entries import Score
from flnl.instruments.compare.ranking import ranks
from flnl.instruments.compare.significance import Paired, holm, least

RESAMPLES = 2000
INTERVAL = 0.95


@dataclass(frozen=True)
class Leaderboard:
    """The entries that have a score in each of some tasks, and how they compare there."""

    benchmark: Benchmark
    tasks: Sequence[Task]
    scores: Mapping[str, Mapping[str, Score]]  # by entry, by task

    @cached_property
    def mean_ranks(self) -> dict[str, float]:
        """The mean over tasks of an entry's rank by mean accuracy, 1 for the best; the best entry first."""
        means = ranks(self._held.mean(2).T).mean(0) if self.scores else ()
        return dict(sorted(zip(self.scores, map(float, means), strict=True), key=lambda item: (item[1], item[0])))

    @cached_property
    def intervals(self) -> dict[str, tuple[float, float]]:
        """Bootstrap intervals (95 %) of the mean ranks: tasks are drawn again, and within each its seeds."""
        if not self.scores:
            return {}
        random, drawn = np.random.default_rng(0), []
        tasks, seeds = self._held.shape[1:]
        for _ in range(RESAMPLES):
            columns = [
                self._held[:, int(task), random.integers(seeds, size=seeds)].mean(1)
                for task in np.atleast_1d(random.integers(tasks, size=tasks))
            ]
            drawn.append(ranks(np.stack(columns)).mean(0))
        ends = np.quantile(np.stack(drawn), [(1 - INTERVAL) / 2, (1 + INTERVAL) / 2], axis=0)
        return {name: (float(low), float(high)) for name, low, high in zip(self.scores, *ends, strict=True)}

    @cached_property
    def better(self) -> dict[tuple[str, str], float]:
        """Pairs of which the first is better, with their p-values: Wilcoxon over tasks and seeds, Holm over all."""
        return self._significant([*combinations(self.scores, 2)])

    def better_with(self, base: str) -> dict[tuple[str, str], float]:
        """As ``better``, of the pairs with ``base`` alone, Holm over them: of many entries all pairs are too many."""
        return self._significant([(base, name) for name in self.scores if name != base] if base in self.scores else [])

    def _significant(self, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], float]:
        paired = [Paired.of(self._flat(one), self._flat(other)) for one, other in pairs]
        found = {}
        for (one, other), test, p in zip(pairs, paired, holm([each.wilcoxon for each in paired]), strict=True):
            mean = test.mean or 0.0
            if p is not None and p < self.benchmark.level and abs(mean) >= self.benchmark.points:
                found[(one, other) if mean > 0 else (other, one)] = p
        return found

    @property
    def underpowered(self) -> bool:
        """Whether so few tasks and seeds can show no significant difference among all entries, however clear it is."""
        pairs, entries = len(self.tasks) * len(self.benchmark.seeds), len(self.scores)
        return entries > 1 and least(pairs) * comb(entries, 2) >= self.benchmark.level

    @cached_property
    def places(self) -> dict[str, int]:
        """An entry's place: one more than the number of entries that are better."""
        return {name: 1 + sum(worse == name for _, worse in self.better) for name in self.mean_ranks}

    @cached_property
    def _held(self) -> NDArray[np.float64]:
        """Accuracies in percent, [entries, tasks, seeds]."""
        seeds = self.benchmark.seeds
        held = [
            [[of[task.name].accuracy[seed] for seed in seeds] for task in self.tasks] for of in self.scores.values()
        ]
        return np.array(held, dtype=float).reshape(len(self.scores), len(self.tasks), len(seeds))

    def _flat(self, name: str) -> dict[tuple[str, int], float]:
        of = self.scores[name]
        return {(task.name, seed): of[task.name].accuracy[seed] for task in self.tasks for seed in self.benchmark.seeds}
