"""The benchmark's page in Markdown."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, median

from flnl.config.folders import CONF
from flnl.console.markdown import grid, literal
from flnl.console.templates import template
from flnl.instruments.benchmark.definition import TIERS, Benchmark, Task
from flnl.instruments.benchmark.entries import ABOUT, CEILING, FEDAVG, Entry, Score
from flnl.instruments.benchmark.leaderboard import Leaderboard
from flnl.instruments.benchmark.reruns import Reruns
from flnl.instruments.tune.shown import spread
from flnl.numerics import moments

COSTS = {"passes": "training_passes", "forward": "forward_passes", "bytes": "bytes"}
"""Columns, and the cost in a trace that each compares."""
TO_FEDAVG = "difference to FedAvg"
HERE = CONF.parent
CARD = re.compile(r"\[`(\w+)`\]\((docs/methods/\w+\.md)\)")
"""A method's card, as the README links to it."""


@dataclass(frozen=True)
class More:
    """A column of a task's table that is there if an entry has it."""

    heading: str
    metric: str  # in a trace
    factor: float
    digits: int
    clean: bool  # whether it says something of a task with right labels
    meaning: str

    def of(self, score: Score) -> str:
        """The mean over seeds; nothing where a run has no such number."""
        value = score.metric(self.metric)
        return "" if value is None else f"{self.factor * value:.{self.digits}f}"


MORE = (
    More(
        "worst client, %",
        "worst_client_mean_last_10",
        100,
        1,
        clean=True,
        meaning="*Worst client*: the lowest accuracy of any client, with the test set's classes weighted as in its "
        "right labels, mean over the last ten evaluations; older runs have not recorded it.",
    ),
    More(
        "F1",
        "detection_f1",
        1,
        2,
        clean=False,
        meaning="*F1*: of the wrong labels that a method has found at the end, if it judges labels.",
    ),
)


@dataclass(frozen=True)
class Page:
    """What the entries of a version say."""

    benchmark: Benchmark
    entries: Sequence[Entry]
    folder: Path  # where it will lie, for its links
    reruns: Reruns = field(default_factory=Reruns)
    others: Mapping[str, str] = field(default_factory=dict)  # the other pages' files, by tier

    @property
    def tier(self) -> str:
        """That of its longest tasks."""
        return max((task.tier for task in self.benchmark.tasks.values()), key=[*TIERS].index)

    @property
    def _told(self) -> list[Task]:
        """The tasks of its tier: those of shorter ones are told on their own pages."""
        return [task for task in self.benchmark.tasks.values() if task.tier == self.tier]

    @cached_property
    def scores(self) -> Mapping[str, Mapping[str, Score]]:
        """By entry and task."""
        return {
            entry.name: {t.name: s for t in self.benchmark.tasks.values() if (s := entry.score(self.benchmark, t))}
            for entry in self.entries
        }

    @cached_property
    def noisy(self) -> list[Task]:
        """The tasks that are ranked: those for which an entry that counts has a score."""
        counting = [self.scores[entry.name] for entry in self.entries if self._counts(entry)]
        return [t for t in self.benchmark.tasks.values() if not t.clean and any(t.name in of for of in counting)]

    def _counts(self, entry: Entry) -> bool:
        return entry.name != CEILING and entry.withdrawn is None

    @cached_property
    def leaderboard(self) -> Leaderboard:
        """Of the entries that are whole and not withdrawn, by ruleset A."""
        return self._leaderboard(searched=False)

    @cached_property
    def leaderboard_searched(self) -> Leaderboard:
        """As ``leaderboard``, by ruleset B."""
        return self._leaderboard(searched=True)

    def _leaderboard(self, *, searched: bool) -> Leaderboard:
        whole = {
            entry.name: self.scores[entry.name]
            for entry in self.entries
            if self._counts(entry) and self.noisy and not self.lacking(entry)
            if entry.searched(self.benchmark) == searched
        }
        return Leaderboard(self.benchmark, self.noisy, whole)

    def lacking(self, entry: Entry) -> list[str]:
        """The ranked tasks of which an entry has no score."""
        return [task.name for task in self.noisy if task.name not in self.scores[entry.name]]

    @property
    def failed(self) -> list[str]:
        """Runs with less than half of the median of FedAvg's seeds in the task, in words."""
        fedavg, found = self.scores.get(FEDAVG, {}), []
        for name in (entry.name for entry in self.entries if entry.withdrawn is None):
            for task, score in self.scores[name].items():
                half = median(base.accuracy.values()) / 2 if (base := fedavg.get(task)) else 0.0
                low = {seed: value for seed, value in score.accuracy.items() if value < half}
                if low:
                    seeds = f"seed{'s' if len(low) > 1 else ''} {', '.join(map(str, low))}"
                    found.append(f"{name} on {task}, {seeds} ({', '.join(f'{value:.1f}' for value in low.values())})")
        return found

    # ------------------------------------------------------------------------------------------------------------ text

    def markdown(self) -> str:
        """The page."""
        unfinished = [
            f"{entry.name} ({', '.join(lacking)})"
            for entry in self.entries
            if self._counts(entry) and (lacking := self.lacking(entry))
        ]
        return template(Path(__file__).with_name("page.md.j2")).render(
            benchmark=self.benchmark,
            tier=self.tier,
            others=self.others,
            suffix=suffix(self.tier),
            seeds=", ".join(map(str, self.benchmark.seeds)),
            docs=self._link(HERE / "docs" / "benchmark.md"),
            ranking=self._ranking(self.leaderboard, more=True),
            searched=self._ranking(self.leaderboard_searched) if self.leaderboard_searched.scores else "",
            harm=bool(self._clean),
            unfinished="; ".join(unfinished),
            own=[(entry.name, literal(" ".join(entry.own))) for entry in self.entries if entry.own],
            failed="; ".join(self.failed),
            underpowered=self.leaderboard.underpowered,
            ranks=len(self.leaderboard.scores) > 1,
            costs=self._costs(),
            timed=self.timed,
            explained=[one.meaning for one in MORE if any(self._more(task, one) for task in self._told)],
            reruns=self._reruns(),
            tasks=[(task, self._of_task(task), self._admission(task)) for task in self._told if self._has(task)],
            tiers=TIERS,
        )

    def _ranking(self, leaderboard: Leaderboard, *, more: bool = False) -> str:
        """Places, ranks and accuracies; with ``more`` of withdrawn entries and of right labels, too."""

        def row(name: str, rank: str = "", place: str = "", difference: str = "") -> list[str]:
            accuracies = [spread_of(self.scores[name].get(task.name)) for task in self.noisy]
            harm = "" if name == CEILING else self._difference(name, self._clean)
            return [self._named(name), rank, place, difference, *accuracies, *([harm] if self._clean else [])]

        places, rows = leaderboard.places, []
        for name, mean in leaderboard.mean_ranks.items():
            low, high = leaderboard.intervals[name]
            rank = f"{mean:.1f} ({low:.1f} to {high:.1f})"
            rows.append(row(name, rank, str(places[name]), self._to_fedavg(leaderboard, name)))
        if more:
            rows += [row(entry.name) for entry in self.entries if entry.withdrawn is not None]
            rows += [row(CEILING)] if CEILING in self.scores else []
        accuracies = [task.name for task in self.noisy]
        heading = ["entry", "rank", "place", TO_FEDAVG, *accuracies, *(["harm"] if self._clean else [])]
        return grid(heading, rows, f"l{'r' * (len(heading) - 1)}")

    def _to_fedavg(self, leaderboard: Leaderboard, name: str) -> str:
        """The difference of means over the noisy tasks, bold if it is significant."""
        points = "" if name == FEDAVG else self._difference(name, self.noisy)
        base = {FEDAVG: of} if (of := self.leaderboard.scores.get(FEDAVG)) else {}  # those of ruleset B are without it
        better = replace(leaderboard, scores={**leaderboard.scores, **base}).better_with(FEDAVG)
        return f"**{points}**" if points and {(name, FEDAVG), (FEDAVG, name)} & better.keys() else points

    def _costs(self) -> str:
        by_name = {entry.name: entry for entry in self.entries}
        rows = []
        for name in (*self.leaderboard.mean_ranks, *self.leaderboard_searched.mean_ranks):
            ratios = [*(self.cost(name, cost) for cost in COSTS.values()), *([self.time(name)] if self.timed else [])]
            cells = ["–" if ratio is None else f"{ratio:.2f}" for ratio in ratios]
            rows.append([self._named(name), *cells, ", ".join(by_name[name].given)])
        heading = ["entry", *COSTS, *(["CPU"] if self.timed else []), "extra information"]
        return grid(heading, rows, f"l{'r' * (len(heading) - 2)}l")

    def _reruns(self) -> str:
        """Of the runs that were repeated, how many have the same numbers, by processors; empty if there are none."""
        rows = []
        present = {entry.name for entry in self.entries if entry.withdrawn is None}
        told = {task.name for task in self._told}
        for (first, again), those in sorted(self.reruns.by_processor(present, told).items()):
            others = [f"{row.entry} on {row.task}, seed {row.seed}" for row in those if row.different]
            rows.append([literal(first), literal(again), str(len(those)), "; ".join(map(literal, others)) or "none"])
        return grid(["first on", "repeated on", "runs", "with other numbers"], rows, "llrl") if rows else ""

    def _more(self, task: Task, column: More) -> bool:
        """Whether an entry has a number for the column of the task's table."""
        if task.clean and not column.clean:
            return False
        return any(column.of(of[task.name]) for of in self.scores.values() if task.name in of)

    def _of_task(self, task: Task) -> str:
        ceiling = self.scores.get(CEILING, {}).get(task.name)
        fedavg = self.scores.get(FEDAVG, {}).get(task.name)
        found = {n: of[task.name] for n, of in self.scores.items() if task.name in of and n != CEILING}
        more = [one for one in MORE if self._more(task, one)]
        rows = []
        for name, score in sorted(found.items(), key=lambda item: -item[1].mean):
            difference = "" if fedavg is None or name == FEDAVG else _signed(score.mean - fedavg.mean)
            cells = (one.of(score) for one in more)
            rows.append([self._named(name), spread_of(score), difference, *cells, literal(score.rate)])
        if ceiling is not None and not task.clean:
            cells = (one.of(ceiling) for one in more)
            rows.insert(0, ["FedAvg on right labels", spread_of(ceiling), "", *cells, literal(ceiling.rate)])
        heading = ["entry", "accuracy, %", TO_FEDAVG, *(one.heading for one in more), "chosen"]
        return grid(heading, rows, f"lrr{'r' * len(more)}l")

    def _admission(self, task: Task) -> str:
        """What FedAvg can win in a noisy task, and what it loses there by memorising wrong labels."""
        ceiling, fedavg = (self.scores.get(name, {}).get(task.name) for name in (CEILING, FEDAVG))
        if fedavg is None or task.clean:
            return ""
        said = []
        if ceiling is not None:
            won = median(ceiling.accuracy.values()) - median(fedavg.accuracy.values())
            said.append(f"With right labels FedAvg's median over seeds is {won:.1f} points higher.")
        if (lost := fedavg.memorised) is not None:
            below = f"{lost:.1f} points below its best ten in a row"
            said.append(f"With the noisy ones its last ten evaluations are {below}.")
        return " ".join(said)

    # --------------------------------------------------------------------------------------------------------- numbers

    def cost(self, name: str, cost: str, tasks: Sequence[Task] | None = None) -> float | None:
        """Times FedAvg's (forward passes: its training passes), mean over ``tasks``; None if one lacks it.

        By default these are the noisy tasks.
        """
        ratios = []
        for own, base in self._beside(name, self.noisy if tasks is None else tasks):
            mine, theirs = own.cost(cost), base.cost(COSTS["passes"] if cost == COSTS["forward"] else cost)
            if mine is None or not theirs:
                return None
            ratios.append(mine / theirs)
        return moments.mean(ratios)

    @property
    def timed(self) -> bool:
        """Whether entries beside FedAvg have processor times."""
        return sum(self.time(name) is not None for name in self.leaderboard.scores) > 1

    def time(self, name: str, tasks: Sequence[Task] | None = None) -> float | None:
        """Processor time in units of FedAvg's on one machine, mean over ``tasks``; None if they were not repeated.

        By default these are the noisy tasks.
        """
        return self.reruns.time(name, FEDAVG, [task.name for task in (self.noisy if tasks is None else tasks)])

    def _beside(self, name: str, tasks: Sequence[Task]) -> list[tuple[Score, Score]]:
        """Its scores in ``tasks`` and FedAvg's; empty if either lacks one."""
        own, base = (self.scores.get(one, {}) for one in (name, FEDAVG))
        names = [task.name for task in tasks]
        return [(own[one], base[one]) for one in names] if {*names} <= own.keys() & base.keys() else []

    def gain(self, name: str, tasks: Sequence[Task] | None = None) -> float | None:
        """Points of its mean over ``tasks`` above FedAvg's; None if either lacks a score.

        By default these are the noisy tasks.
        """
        both = self._beside(name, self.noisy if tasks is None else tasks)
        return fmean(own.mean - base.mean for own, base in both) if both else None

    def _difference(self, name: str, tasks: Sequence[Task]) -> str:
        """``gain`` in words; empty without one."""
        gain = self.gain(name, tasks)
        return "" if gain is None else _signed(gain)

    @property
    def _clean(self) -> list[Task]:
        return [task for task in self.benchmark.tasks.values() if task.clean and self._has(task)]

    def _has(self, task: Task) -> bool:
        return any(task.name in of for of in self.scores.values())

    def _named(self, name: str) -> str:
        entry = next(entry for entry in self.entries if entry.name == name)
        if name == CEILING:
            return "*clean labels*"
        about = entry.folder / ABOUT
        page = about if about.exists() else self._cards.get(entry.method)
        text = literal(name) if page is None else f"[{literal(name)}]({self._link(page)})"
        return text if entry.withdrawn is None else f"~~{text}~~ ({literal(' '.join(entry.withdrawn.split()))})"

    @cached_property
    def _cards(self) -> dict[str, Path]:
        """The cards of this project's methods, by method; none where the package is installed without its pages."""
        readme = HERE / "README.md"
        return {name: HERE / card for name, card in CARD.findall(readme.read_text())} if readme.exists() else {}

    def _link(self, file: Path) -> str:
        return Path(os.path.relpath(file, self.folder)).as_posix()


def pages(benchmark: Benchmark, entered: Sequence[Entry], folder: Path, reruns: Reruns) -> list[Page]:
    """A page for each tier that has an entry, of those in it, over its tasks and those of shorter tiers.

    The first has all entries: they begin there.
    """
    tiers = [*TIERS]
    found: dict[str, tuple[Benchmark, Sequence[Entry]]] = {}
    for tier in tiers:
        tasks = {name: task for name, task in benchmark.tasks.items() if tiers.index(task.tier) <= tiers.index(tier)}
        own = {word for task in tasks.values() if task.tier == tier for word in (task.override, task.ceiling)}
        begun = [entry for entry in entered if not found or own & {*entry.studies}]
        if own and begun:
            found[tier] = (replace(benchmark, tasks=tasks), begun)
    files = {tier: file_of(tier) for tier in found}
    return [
        Page(part, begun, folder, reruns, {other: file for other, file in files.items() if other != tier})
        for tier, (part, begun) in found.items()
    ]


def suffix(tier: str) -> str:
    """Of the files of a tier's page: none of the shortest one's, which a reader of the folder sees first."""
    return "" if tier == next(iter(TIERS)) else f"_{tier.lower()}"


def file_of(tier: str) -> str:
    """The name of a tier's page."""
    return f"README{suffix(tier)}.md"


def spread_of(score: Score | None) -> str:
    """Mean and standard deviation over seeds, in percent; nothing where there is no score."""
    return "" if score is None else spread({seed: value / 100 for seed, value in score.accuracy.items()})


def _signed(points: float) -> str:
    text = f"{points:+.1f}"
    return "0.0" if float(text) == 0 else text.replace("-", "−")
