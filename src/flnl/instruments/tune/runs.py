"""The runs of tuning, each in a folder named by its key, and what is read from them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from hydra.errors import HydraException

from flnl.config import compose, explain
from flnl.config.check import check_config
from flnl.config.identity import placed_key, run_key
from flnl.config.override_text import group_of, without
from flnl.console.shell import joined
from flnl.core.errors import UserError
from flnl.instruments.tune.scores import HELD_OUT, ON_TEST_SET, RESULT, VALIDATION, score
from flnl.instruments.tune.space import Space
from flnl.record.run import TUNING, RunRecord
from flnl.record.trace import Trace
from flnl.record.tuned import Reported, Study, Trial, Tuned, Values, overrides_of
from flnl.sweep import listed
from flnl.sweep.listed import ListedRun
from flnl.sweep.moved import Moved

if TYPE_CHECKING:
    from flnl.run.reuse import Reuse

QUIET = ("wandb.mode=disabled", "figures=false", "products=false")
"""Set before the command's overrides: none of these is part of a run's key, and tuning needs no products."""


@dataclass(frozen=True)
class Known:
    """A finished run that a file of ``flnl tune`` has."""

    folder: str
    scores: Mapping[str, float]  # by measure
    trace: Trace

    @classmethod
    def of(cls, tuned: Tuned) -> dict[frozenset[str], Known]:
        """The runs with a score and a trace, by their overrides."""
        found = {}
        for study in tuned.studies:
            for trial in study.trials:
                for seed, trace in trial.traces.items():
                    if (value := trial.scores[seed]) is not None:
                        run = _overrides(study.fixed, trial.values, seed)
                        found[frozenset(run)] = cls(trial.runs[seed], {tuned.measure: value}, trace)
            if study.reported is None or study.chosen is None:
                continue
            for seed, trace in study.reported.traces.items():
                by_measure = {name: by_seed.get(seed) for name, by_seed in study.reported.scores.items()}
                scores = {name: value for name, value in by_measure.items() if value is not None}
                run = _overrides(final(study.fixed, tuned.measure), study.chosen.values, seed)
                found[frozenset(run)] = cls(study.reported.runs[seed], scores, trace)
        return found


@dataclass(frozen=True)
class Runs:
    """The runs of combinations under every seed, and their scores. A run that has finished is not run again."""

    seeds: Sequence[int]
    measure: str
    launching: Sequence[str]  # how runs are launched
    command: Sequence[str]  # the words that go on if it is stopped
    root: Path = TUNING
    own: Sequence[str] = ()  # what adds folders of the user's to the search path
    known: Mapping[frozenset[str], Known] = field(default_factory=dict)  # runs that need no folder, by overrides
    _checked: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    @cached_property
    def _moved(self) -> Moved:
        return Moved(self.root)

    @cached_property
    def _reuse(self) -> Reuse:
        from flnl.run.reuse import Reuse  # torch takes seconds to import

        return Reuse()

    def current(self, study: Study) -> bool:
        """Whether a file's study is of the configuration and data of today: its overrides say neither.

        A run of each trial is compared if trials differ in a file of the configuration, and else one run.
        """
        by_files = any(map(group_of, study.trials[0].values))
        return all(self._is_current(study, trial) for trial in study.trials[: None if by_files else 1])

    def _is_current(self, study: Study, trial: Trial) -> bool:
        """By a run's key and federation in its trace; without them by its folder, which is named after both."""
        for seed, folder in trial.runs.items():
            overrides = (*self.own, *_overrides(study.fixed, trial.values, seed))
            try:
                key, placed, of_files = _keys(overrides)
            except UserError:  # they make no run any more
                return False
            trace = trial.traces.get(seed)
            if trace is None or not trace.key:
                same = Path(folder).name == self._moved.folder(placed[:16], key, overrides)
            else:
                same = trace.key == key
            if not same or trace is None or not of_files:
                return same
            return self._reuse.draws(compose.load(overrides), trace.drawn.federation)
        return True

    def grids(self, spaces: Sequence[Space], margin: float | None) -> list[list[Trial]]:
        """The trials of all combinations of each space.

        Args:
            spaces: one for each study.
            margin: None runs all in one sweep. Else there is a sweep for each seed, with the combinations of a study
                whose mean score so far is less than this behind the best; if all of them fail, those that were
                dropped come back.

        Raises:
            UserError: if a combination makes no run, or the launcher broke down.
        """
        grids = [list(space.grid()) for space in spaces]
        trials: list[dict[int, Trial]] = [{} for _ in spaces]
        live: list[Sequence[int]] = [range(len(grid)) for grid in grids]
        steps = [self.seeds] if margin is None else [self.seeds[:count] for count in range(1, len(self.seeds) + 1)]
        while any(live):
            seeds, *steps = steps or [self.seeds]
            wanted = [(space.fixed, grid[k]) for space, grid, on in zip(spaces, grids, live, strict=True) for k in on]
            self._launch(wanted, seeds)
            for space, grid, on, of_space in zip(spaces, grids, live, trials, strict=True):
                of_space |= {k: self._trial(space.fixed, grid[k], seeds) for k in on}
            if margin is None:
                break
            live = [
                _next(of_space, on, margin, last=not steps) if on else []
                for on, of_space in zip(live, trials, strict=True)
            ]
        return [[of_space[k] for k in sorted(of_space)] for of_space in trials]

    def trials(self, fixed: Sequence[str], combinations: Sequence[Values]) -> list[Trial]:
        """Each combination's trial.

        Raises:
            UserError: if a combination makes no run, or the launcher broke down.
        """
        self._launch([(fixed, values) for values in combinations], self.seeds)
        return [self._trial(fixed, values, self.seeds) for values in combinations]

    def reported(self, studies: Sequence[Study], seeds: Sequence[int]) -> list[Study]:
        """The studies with the results of what they chose under ``seeds``, with no samples held out for the measure.

        Raises:
            UserError: if the launcher broke down.
        """
        wanted = {
            number: {seed: self._run(final(study.fixed, self.measure), study.chosen.values, seed) for seed in seeds}
            for number, study in enumerate(studies)
            if study.chosen is not None
        }
        self._complete([run for of_study in wanted.values() for run in of_study.values()], RESULT)
        reported = {number: self._reported(runs) for number, runs in wanted.items()}
        return [replace(study, reported=reported.get(number, study.reported)) for number, study in enumerate(studies)]

    def _launch(self, combinations: Sequence[tuple[Sequence[str], Values]], seeds: Sequence[int]) -> None:
        """Run what has not finished, in one sweep. Each combination comes with the overrides that it shares."""
        wanted = [self._run(fixed, values, seed) for fixed, values in combinations for seed in seeds]
        self._complete(wanted, self.measure)

    def _reported(self, runs: Mapping[int, ListedRun]) -> Reported:
        scores = {one: {seed: self._score(run, one) for seed, run in runs.items()} for one in ON_TEST_SET}
        return Reported(scores, self._folders(runs), self._traces(runs))

    def _complete(self, wanted: Sequence[ListedRun], measure: str) -> None:
        missing = {run.folder: run for run in wanted if self._score(run, measure) is None}
        self._check_data([run for run in wanted if run.folder not in missing and self._known(run) is None])
        if not listed.launch(list(missing.values()), self.root, self.launching, self.command):
            raise UserError("the launcher ended before its runs did; the same command goes on with them")
        self._checked.update(run.folder for run in wanted)

    def _check_data(self, finished: Sequence[ListedRun]) -> None:
        """Check that finished runs are of the data that the files hold now; each is checked once.

        Raises:
            UserError: naming those that are not.
        """
        stale = {}
        for run in finished:
            folder = self.root / run.folder
            record = None if run.folder in self._checked else RunRecord.read(folder)
            if record is not None and (why := self._reuse.changed(compose.load(run.overrides), record)):
                stale[str(folder)] = why
        if stale:
            raise UserError(
                f"{len(stale)} of the runs are finished, of another federation than the one drawn now: "
                f"{next(iter(stale.values()))}; to run them again: {joined(['rm', '-r', *stale])}"
            )

    def _trial(self, fixed: Sequence[str], values: Values, seeds: Sequence[int]) -> Trial:
        runs = {seed: self._run(fixed, values, seed) for seed in seeds}
        scores = {seed: self._score(run, self.measure) for seed, run in runs.items()}
        return Trial(values, scores, self._folders(runs), self._traces(runs))

    def _known(self, run: ListedRun) -> Known | None:
        return self.known.get(frozenset(run.overrides).difference(QUIET, self.own))

    def _score(self, run: ListedRun, measure: str) -> float | None:
        known = self._known(run)
        return score(self.root / run.folder, measure) if known is None else known.scores.get(measure)

    def _folders(self, runs: Mapping[int, ListedRun]) -> dict[int, str]:
        return {
            seed: str(self.root / run.folder) if (known := self._known(run)) is None else known.folder
            for seed, run in runs.items()
        }

    def _traces(self, runs: Mapping[int, ListedRun]) -> dict[int, Trace]:
        """The traces of finished runs, by seed."""
        found = {}
        for seed, run in runs.items():
            if (known := self._known(run)) is not None:
                found[seed] = known.trace
            elif (record := RunRecord.read(self.root / run.folder)) is not None and record.finished:
                found[seed] = Trace.of(record)
        return found

    def _run(self, fixed: Sequence[str], values: Values, seed: int) -> ListedRun:
        overrides = _overrides(fixed, values, seed)
        all_of_them = (*self.own, *overrides)
        key, placed, _ = _keys(all_of_them)
        folder = self._moved.folder(placed[:16], key, all_of_them)
        return ListedRun(" ".join(overrides), folder, [*QUIET, *all_of_them])


def final(overrides: Sequence[str], measure: str) -> list[str]:
    """The overrides of a final run: without the share of samples that is held out for ``--measure validation``."""
    return without(overrides, HELD_OUT) if measure == VALIDATION else list(overrides)


def _overrides(fixed: Sequence[str], values: Values, seed: int) -> tuple[str, ...]:
    """Those of a run."""
    return (*fixed, *overrides_of(values), f"seed={seed}")


def _next(trials: Mapping[int, Trial], ran: Sequence[int], margin: float, *, last: bool) -> list[int]:
    """The trials that go on, after those in ``ran`` have run under one seed more, or under the ``last`` one."""
    means = {k: trial.mean for k, trial in trials.items() if trial.mean is not None}
    going = [k for k in ran if k in means]
    if last and going:
        return []
    candidates = going or [*means]  # all that ran have failed: those that were dropped come back
    best = max((means[k] for k in candidates), default=0.0)
    return [k for k in candidates if means[k] > best - margin]


@cache
def _keys(overrides: tuple[str, ...]) -> tuple[str, str, bool]:
    """The key of the run, the one that names its folder, and whether its data are files that no checksum tells.

    Raises:
        UserError: if it could only fail.
    """
    from flnl.run.opening import method_of  # torch takes seconds to import
    from flnl.run.reuse import names_files

    try:
        composed = compose.load(overrides)
        check_config(composed)
        method_of(composed, overrides)
    except HydraException as error:
        raise UserError(explain.explain(error, overrides)) from None
    plain = compose.resolved(composed)
    return run_key(plain), placed_key(plain), names_files(plain)
