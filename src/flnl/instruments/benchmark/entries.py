"""Entries: a folder for each method, with what chose its learning rate and its scores, and the runs behind them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean, median

from flnl.config.folders import CONF
from flnl.config.override_text import key_of, value_of
from flnl.core.errors import UserError
from flnl.instruments.benchmark.definition import Benchmark, Task
from flnl.instruments.benchmark.reruns import Run
from flnl.instruments.tune.runs import final
from flnl.numerics import moments
from flnl.record.trace import Trace
from flnl.record.tuned import Reported, Study, Trial, Tuned, overrides_of

RESULTS = CONF.parent / "results" / "benchmark"
SCORES = "scores.json"
CLEAN = "eval.benchmark"
"""The share of the test set that the server holds for methods that need clean samples."""
SET = ("method", "experiment", "eval.validation", CLEAN)
"""What the benchmark fixes in studies; the rest are an entry's own keys."""
ABOUT = "about.md"
WITHDRAWN = "withdrawn.md"
"""Its text says why an entry counts no more; the row stays."""
MEASURE = "mean_last_10"
FEDAVG, CEILING = "fedavg", "clean_labels"
"""The entry to which the others are compared, and that of FedAvg on right labels, which takes no part."""
NAME = re.compile(r"[a-z0-9][a-z0-9_]*")


@dataclass(frozen=True)
class Score:
    """What one method reached in one task, by seed."""

    accuracy: Mapping[int, float]  # m10, in percent
    rate: str  # what was chosen, as in "train.lr=0.03"
    traces: Mapping[int, Trace]

    @property
    def mean(self) -> float:
        """Over seeds."""
        return fmean(self.accuracy.values())

    @property
    def memorised(self) -> float | None:
        """How far m10 lies below the best mean of ten evaluations in a row, in points.

        The median over seeds; None if a run has not recorded it.
        """
        runs = [trace.metrics for trace in self.traces.values()]
        lost = [100 * (run["best_mean_10"] - run[MEASURE]) for run in runs if "best_mean_10" in run]
        return median(lost) if len(lost) == len(self.accuracy) else None

    def cost(self, name: str) -> float | None:
        """The mean of one of ``flnl.record.trace.COSTS`` over seeds; None if a run has none."""
        return self._mean([trace.costs.get(name) for trace in self.traces.values()])

    def metric(self, name: str) -> float | None:
        """The mean of a final metric, such as ``detection_f1``, over seeds; None if a run has none."""
        return self._mean([trace.metrics.get(name) for trace in self.traces.values()])

    def _mean(self, found: Sequence[float | None]) -> float | None:
        numbers = [value for value in found if value is not None]
        return moments.mean(numbers) if len(numbers) == len(self.accuracy) else None


@dataclass(frozen=True)
class Entry:
    """A method's folder."""

    name: str
    folder: Path
    tuned: Tuned

    @property
    def withdrawn(self) -> str | None:
        """Why it counts no more; None if it does."""
        file = self.folder / WITHDRAWN
        return file.read_text(encoding="utf-8").strip() if file.exists() else None

    @cached_property
    def studies(self) -> Mapping[str, Study]:
        """By experiment."""
        return {study.each["experiment"]: study for study in self.tuned.studies}

    def reported(self, task: Task) -> tuple[Study, Trial, Reported] | None:
        """Its study of a task, what it chose, and what that gave; None without a result."""
        study = self.studies.get(task.ceiling if self.name == CEILING else task.override)
        if study is None or study.chosen is None or study.reported is None:
            return None
        return study, study.chosen, study.reported

    def score(self, benchmark: Benchmark, task: Task) -> Score | None:
        """Its score in a task; None if a seed lacks one."""
        if (found := self.reported(task)) is None:
            return None
        _, chosen, reported = found
        held = reported.scores[MEASURE]
        accuracy = {seed: 100 * value for seed in benchmark.seeds if (value := held.get(seed)) is not None}
        if len(accuracy) < len(benchmark.seeds):
            return None
        return Score(accuracy, ", ".join(overrides_of(chosen.values)), reported.traces)

    @property
    def method(self) -> str:
        """The name of its method."""
        return self.tuned.studies[0].each["method"]

    @property
    def own(self) -> list[str]:
        """The keys of its method that it sets, as overrides; not those that it has searched."""
        return [one for one in self.tuned.studies[0].fixed if key_of(one) not in SET]

    def searched(self, benchmark: Benchmark) -> bool:
        """Whether more than the rate was chosen, by ruleset B."""
        return any(_searched(study, benchmark) for study in self.tuned.studies)

    @property
    def traces(self) -> list[Trace]:
        """Those of all results."""
        return [trace for study in self.tuned.studies if study.reported for trace in study.reported.traces.values()]

    @property
    def given(self) -> list[str]:
        """What the method had besides its clients' data."""
        return sorted({name for trace in self.traces for name in trace.given})

    def claims(self, benchmark: Benchmark, task: Task) -> Iterator[Claim]:
        """The runs of its score in a task that are on record."""
        if (found := self.reported(task)) is None:
            return
        study, _, reported = found
        for seed in benchmark.seeds:
            if (trace := reported.traces.get(seed)) is not None:
                chosen = [*final(study.overrides, self.tuned.measure), f"seed={seed}"]
                yield Claim(self.name, task.name, seed, chosen, trace)


@dataclass(frozen=True)
class Claim:
    """A run that a score rests on, as it can be repeated: overrides, and the numbers that they must give."""

    entry: str
    task: str
    seed: int
    chosen: Sequence[str]  # what is run, under which seed
    trace: Trace

    @property
    def overrides(self) -> list[str]:
        """All overrides; clients are run by the recorded executor."""
        from flnl.engine.executors.auto import overrides_of  # imports torch

        return [*self.chosen, *overrides_of(self.trace.origins[-1].executor or "sequential"), "reproducible=true"]

    def __str__(self) -> str:
        return f"{self.entry}, {self.task}, seed {self.seed}"

    @property
    def run(self) -> Run:
        """Which one it is."""
        return self.entry, self.task, self.seed


def claims(benchmark: Benchmark, entered: Sequence[Entry], tasks: Sequence[Task]) -> list[Claim]:
    """Every run of these entries in these tasks that is on record; withdrawn entries claim nothing."""
    standing = [entry for entry in entered if entry.withdrawn is None]
    return [claim for entry in standing for task in tasks for claim in entry.claims(benchmark, task)]


def drawn(those: Sequence[Claim], word: str) -> Claim:
    """One of them, which the ``word`` draws: the same one wherever the list is the same."""
    return those[int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little") % len(those)]


def folder_of(benchmark: Benchmark, name: str, results: Path = RESULTS) -> Path:
    """The folder of an entry.

    Raises:
        UserError: if the name cannot be that of an entry.
    """
    if not NAME.fullmatch(name):
        raise UserError(f"name={name}: an entry's name has small letters, digits and _, and begins with no _")
    return results / benchmark.version / name


def entries(benchmark: Benchmark, results: Path = RESULTS) -> Iterator[Entry]:
    """All entries of a version, by name.

    Raises:
        UserError: if a file of scores is damaged, or was made by other rules.
    """
    for file in sorted((results / benchmark.version).glob(f"*/{SCORES}")):
        tuned = Tuned.load(file)
        tried = [trial.values.get(benchmark.rate) for study in tuned.studies for trial in study.trials]
        fair = {*tried} <= {*benchmark.rates} and all(len(study.trials) <= benchmark.trials for study in tuned.studies)
        given = {value_of(one) for study in tuned.studies for one in study.fixed if key_of(one) == CLEAN}
        fair &= given <= {str(benchmark.clean_share)}
        if tuned.measure != "validation" or tuple(tuned.seeds) != benchmark.tuning_seeds or not fair:
            raise UserError(f"{file} was not made by the rules of version {benchmark.version}")
        if whole := [study for study in tuned.studies if _whole(study, benchmark)]:
            yield Entry(file.parent.name, file.parent, replace(tuned, studies=whole))


def _whole(study: Study, benchmark: Benchmark) -> bool:
    """Whether all rates were tried, or more than the rate was searched: others are of a version with another grid."""
    return _searched(study, benchmark) or {t.values[benchmark.rate] for t in study.trials} == {*benchmark.rates}


def _searched(study: Study, benchmark: Benchmark) -> bool:
    """Whether more than the rate was chosen in it."""
    return any({*trial.values} != {benchmark.rate} for trial in study.trials)
