"""Write the pages whose numbers come from records: ``python -m bench.pages``.

Each template in ``docs/templates`` is a page of ``docs``. It takes every number of ours from the tables and records in
``results``, and says with ``sure`` what words such as "ahead" rest on: a page that its records contradict is not
written.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, partial
from math import isclose
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

from flnl.config.folders import CONF
from flnl.console.templates import template
from flnl.instruments.benchmark import definition, entries
from flnl.instruments.benchmark import page as benchmark
from flnl.instruments.benchmark.reruns import Reruns
from flnl.instruments.compare.significance import Paired
from flnl.instruments.tables import load, run_record
from flnl.instruments.tables.render import rendered, scales
from flnl.instruments.tables.render.agreement import spearman
from flnl.instruments.tables.render.ranking import Ranking, is_ranked, papers_mean_ranks
from flnl.instruments.tables.render.sheet import text
from flnl.instruments.tables.results import Filled
from flnl.instruments.tables.run_record import Written
from flnl.record.tuned import Study, Tuned
from flnl.storage.input_file import parse_json

ROOT = CONF.parent
DOCS, RESULTS = ROOT / "docs", ROOT / "results"
TEMPLATES = DOCS / "templates"

Line = Mapping[str, str]


class ContradictedError(Exception):
    """A page claims what its records do not say."""


@cache
def _read(file: Path) -> Sequence[Line]:
    with file.open(newline="", encoding="utf-8") as text:
        return list(csv.DictReader(text))


def lines(table: str, scale: str) -> Sequence[Line]:
    """The lines of a table's CSV file at a scale: a cell each."""
    return _read(RESULTS / scale / f"{table}.csv")


def measured(name: str) -> Sequence[Line]:
    """The lines of a file of ``bench/results``: a run each."""
    return _read(ROOT / "bench" / "results" / f"{name}.csv")


def card_run(setting: str, run: str) -> float:
    """The mean over seeds of a card's run: of the last ten evaluations, in percent."""
    rows = [row for row in measured("card_runs") if (row["setting"], row["run"]) == (setting, run)]
    return 100 * fmean(parse_json(row["metrics"])["mean_last_10"] for row in rows)


@cache
def runs(scale: str) -> Mapping[str, Written]:
    """The records of a scale, checked as tables check them."""
    return run_record.load(RESULTS / scale)


def column(table: str, label: str, scale: str = "lenet", what: str = "ours") -> dict[str, float]:
    """What a column holds of every row, by row: ``ours``, ``ours_std`` or ``paper``, of several the first."""
    found: dict[str, float] = {}
    for line in lines(table, scale):
        if line["column"] == label and line[what]:
            found.setdefault(line["row"], _ours(line, scale) if what == "ours" else float(line[what]))
    if not found:
        raise KeyError(f"{scale}/{table} has no {what} in {label}")
    return found


def _ours(line: Line, scale: str) -> float:
    """A cell's number from its runs' records, with the last bits that decide how the table rounds it."""
    number = float(line["ours"])
    held = [runs(scale)[one].record.metrics for one in parse_json(line["records"])]
    means = (100 * fmean(one[key] for one in held) for key in ("best", "mean_last_10", "last")) if held else ()
    return next((one for one in means if isclose(one, number, rel_tol=1e-9)), number)


def printed(table: str, label: str) -> dict[str, float]:
    """What a paper prints in a column of a table, by method."""
    found = load.table(table)
    number = [one.label for one in found.columns].index(label)
    cells = ((row, cells[number]) for row, cells in zip(found.rows, found.cells, strict=True) if row.method)
    return {row.method: cell.mean for row, cell in cells if cell is not None}


def lead(cells: Mapping[str, float], method: str) -> float:
    """How far a method is ahead of the best other one; negative if it is behind."""
    best: float = max(value for name, value in cells.items() if name != method)
    return cells[method] - best


def place(cells: Mapping[str, float], method: str) -> int:
    """A method's place, 1 for the best."""
    return 1 + sum(value > cells[method] for value in cells.values())


def columns(table: str, scale: str = "lenet") -> list[str]:
    """The labels of the columns in which something has run."""
    return list(dict.fromkeys(line["column"] for line in lines(table, scale) if line["state"] == "run"))


def record(table: str, label: str, row: str, scale: str = "lenet") -> Written:
    """The record of the first run of a cell."""
    (line,) = (one for one in lines(table, scale) if (one["column"], one["row"]) == (label, row))
    return runs(scale)[parse_json(line["records"])[0]]


def accuracy_after(record: Written, round: int) -> float:
    """The accuracy, in percent, of the evaluation after a round."""
    (line,) = (one for one in record.rows if one["kind"] == "evaluation" and one["round"] == round)
    return 100 * float(line["accuracy"])


class Ranks(scales.Rendered):
    """A paper's methods over its settings at a scale."""

    @cached_property
    def ranked(self) -> Ranking:
        """The ranking, which a paper of these pages has."""
        found = self.ranking
        assert found is not None, f"{self.name} has no setting of {self.paper}"
        return found

    @property
    def mean(self) -> dict[str, float]:
        """Mean ranks of our numbers, the best method first."""
        return self.ranked.mean_ranks

    @property
    def theirs(self) -> dict[str, float]:
        """Mean ranks of the paper's numbers."""
        return papers_mean_ranks(self.ranked) or {}

    @property
    def first(self) -> str:
        """The method of the lowest mean rank."""
        return next(iter(self.mean))

    @property
    def spearman(self) -> float:
        """The median of the rank correlations with the paper's orders."""
        return median(self.coefficients)

    @property
    def apart(self) -> list[tuple[str, str]]:
        """Pairs that the test tells apart, the better one first."""
        return [] if self.ranked.too_few else self.ranked.apart

    def behind(self, method: str) -> list[str]:
        """The methods that the test puts behind this one."""
        return [worse for better, worse in self.apart if better == method]

    def lost(self, method: str) -> dict[str, str]:
        """The settings in which a method is not first, each with the first."""
        return {
            one.column: max(one.ours, key=lambda name: one.ours[name])
            for one in self.ranked.settings
            if max(one.ours.values()) > one.ours[method]
        }

    @property
    def verdict(self) -> str:
        """The critical difference, or why there is none."""
        if self.ranked.too_few:
            return "too few settings for a test"
        if not self.ranked.significant:
            return f"no difference shown, p = {self.ranked.friedman[1]:.2f}"
        return f"critical difference {self.ranked.critical_difference:.1f}"


@cache
def ranks(paper: str, scale: str, metric: str | None = None) -> Ranks:
    """The methods of a paper over its settings at a scale, by another metric than the tables' if one is given."""
    tables = _tables(scale, metric)
    return Ranks(scale, paper, [one for one in tables if one.table.paper == paper and is_ranked(one.table)])


@cache
def _tables(scale: str, metric: str | None) -> Sequence[Filled]:
    return rendered.read(RESULTS / scale, metric)


def others(table: str, label: str, usual: float = 0.01, scale: str = "lenet") -> str:
    """The methods of a column whose chosen rate is not the ``usual`` one, each with its rate."""
    found = {}
    for line in lines(table, f"{scale}_tuned"):
        rate = re.search(r"train\.lr=([\d.]+)", line["commands"])
        if line["column"] == label and rate and float(rate[1]) != usual:
            found[line["row"]] = rate[1]
    return ", ".join(f"{row} {rate}" for row, rate in found.items())


def warmed(row: str, scale: str = "lenet") -> set[str]:
    """The first records of a method's cells whose best accuracy is of before the method acts."""
    every = (line for file in (RESULTS / scale).glob("*_[0-9]*.csv") for line in lines(file.stem, scale))
    return {parse_json(one["records"])[0] for one in every if one["row"] == row and "before all of" in one["note"]}


@cache
def seeds_apart() -> tuple[float, float]:
    """How far the seeds of the audits on CIFAR-10 are apart, in points.

    Returns:
        the largest range over seeds of a method's last accuracy, and of its distance from FedAvg's.
    """
    last = {
        (row["noise"], row["method"], row["seed"]): 100 * float(row["test_accuracy"]) for row in measured("label_audit")
    }
    runs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for (noise, method, seed), accuracy in last.items():
        if method != "pooled":
            runs.setdefault((noise, method), []).append((accuracy, accuracy - last[noise, "fedavg", seed]))
    ranges = [[max(one) - min(one) for one in zip(*seeds, strict=True)] for seeds in runs.values()]
    return max(one for one, _ in ranges), max(one for _, one in ranges)


@cache
def benchmarked(tier: str = "S") -> benchmark.Page:
    """The page of a tier of the benchmark's newest version."""
    newest = definition.load()
    folder = entries.RESULTS / newest.version
    found = benchmark.pages(newest, [*entries.entries(newest)], folder, Reruns.load(folder))
    return next(one for one in found if one.tier == tier)


@dataclass(frozen=True)
class Beside:
    """A method in an experiment of a comparison, beside FedAvg under the same seeds."""

    study: Study
    fedavg: Study

    @cached_property
    def accuracy(self) -> Mapping[str, float]:
        """The mean of the last ten evaluations of each seed, in percent."""
        return _reported(self.study)

    @property
    def mean(self) -> float:
        """Over seeds."""
        return fmean(self.accuracy.values())

    @property
    def deviation(self) -> float:
        """The sample standard deviation over seeds."""
        return stdev(self.accuracy.values())

    @cached_property
    def paired(self) -> Paired:
        """How far it is ahead of FedAvg, in points, by seed."""
        return Paired.of(self.accuracy, _reported(self.fedavg))


@cache
def compared(name: str) -> Mapping[str, Mapping[str, Beside]]:
    """The methods of a file of ``flnl tune``, by experiment, in the order of the file."""
    studies = Tuned.load(DOCS / f"{name}.json").studies
    return {
        fedavg.each["experiment"].removeprefix("comparison/"): {
            one.each["method"]: Beside(one, fedavg)
            for one in studies
            if one.each["experiment"] == fedavg.each["experiment"] and one.reported is not None
        }
        for fedavg in studies
        if fedavg.each["method"] == "fedavg"
    }


def _reported(study: Study) -> Mapping[str, float]:
    assert study.reported is not None, study.each
    return {str(seed): 100 * (score or 0.0) for seed, score in study.reported.scores["mean_last_10"].items()}


def highest(scores: Mapping[str, Mapping[str, entries.Score]], task: str) -> str:
    """The entry with the highest mean in a task."""
    return max(scores, key=lambda name: scores[name][task].mean)


def order(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Spearman's coefficient over the rows that both have."""
    common = [name for name in one if name in other]
    found = spearman([one[name] for name in common], [other[name] for name in common])
    assert found is not None, common
    return found


def sure(claim: object) -> str:
    """Nothing, if the claim holds.

    Raises:
        ContradictedError: if it does not.
    """
    if not claim:
        raise ContradictedError
    return ""


def page(name: str) -> str:
    """The text of a page.

    Raises:
        ContradictedError: if records contradict a claim of it.
    """
    digits = {f"n{digits}": partial(text, std=None, digits=digits) for digits in range(3)}
    cells = (column, columns, printed, lead, place, record, accuracy_after, lines, measured, card_run, warmed, compared)
    of_benchmark = benchmarked, highest, benchmark.spread_of
    known: tuple[Any, ...] = (*cells, ranks, others, order, sure, seeds_apart, *of_benchmark)
    names = {one.__name__: one for one in (*known, min, max, abs, dict, float)}
    return template(TEMPLATES / name, digits).render(names)


def main() -> None:
    """Write all pages."""
    for file in sorted(TEMPLATES.glob("*.md.j2")):
        written = DOCS / file.stem
        written.write_text(page(file.name), encoding="utf-8")
        print(written.relative_to(ROOT))


if __name__ == "__main__":
    main()
