"""The file that ``flnl tune`` writes: trials, their scores, what was chosen, and the results of the choice."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from flnl.console.ties import compared
from flnl.core.errors import UserError
from flnl.numerics import moments
from flnl.record.closing import same
from flnl.record.trace import Trace, compact, expanded
from flnl.storage.input_file import read_json_file
from flnl.storage.output_file import save_output

FORMAT = 1

CHECKSUM = "sha256"
"""The key of the file's checksum."""

Values = Mapping[str, str]
"""The value of each key as an override writes it."""

Compared = tuple[str, Sequence[object], Sequence[object]]
"""The name of something that two commands must have in common, and what each has."""


def overrides_of(values: Values) -> list[str]:
    """The overrides that set ``values``."""
    return [f"{key}={value}" for key, value in values.items()]


@dataclass(frozen=True)
class Trial:
    """One combination of values, with its score under each seed. A run that failed has none.

    A combination that was dropped before its last seed has fewer scores than others.
    """

    values: Values
    scores: Mapping[int, float | None]  # by seed
    runs: Mapping[int, str] = field(default_factory=dict)  # folders, by seed
    traces: Mapping[int, Trace] = field(default_factory=dict)  # of finished runs, by seed; earlier versions wrote none

    @property
    def scored(self) -> set[int]:
        """The seeds of runs that have a score."""
        return {seed for seed, score in self.scores.items() if score is not None}

    @property
    def mean(self) -> float | None:
        """The mean score over seeds; None if a run failed."""
        return moments.mean(self._finite) if len(self._finite) == len(self.scores) else None

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds (divided by the count less one); None of one seed or a failed run."""
        return moments.deviation(self._finite) if len(self._finite) == len(self.scores) else None

    @property
    def _finite(self) -> list[float]:
        return [score for score in self.scores.values() if score is not None and math.isfinite(score)]


@dataclass(frozen=True)
class Reported:
    """The chosen combination under seeds that took no part in the choice. A run that failed has no score."""

    scores: Mapping[str, Mapping[int, float | None]]  # by measure and seed
    runs: Mapping[int, str] = field(default_factory=dict)  # folders, by seed
    traces: Mapping[int, Trace] = field(default_factory=dict)  # of finished runs, by seed; earlier versions wrote none

    @property
    def scored(self) -> set[int]:
        """The seeds of runs that have a score."""
        return {seed for by_seed in self.scores.values() for seed, score in by_seed.items() if score is not None}


@dataclass(frozen=True)
class Edge:
    """A chosen number at the edge of what was tried: one beyond it may be better."""

    key: str
    value: str
    end: str  # "smallest" or "largest"

    def __str__(self) -> str:
        return f"{self.key}={self.value}, the {self.end}"


@dataclass(frozen=True)
class Study:
    """What was tried for one command, in order, what was chosen, and the results of the choice, if asked for."""

    each: Values  # the values of the keys that were gone through, one study for each combination
    fixed: Sequence[str]  # overrides of every trial
    trials: Sequence[Trial]
    reported: Reported | None = None

    @property
    def chosen(self) -> Trial | None:
        """The trial with the highest mean; of equal ones the first. None if every trial has a failed run.

        A trial that was dropped is not chosen: its mean is over fewer seeds.
        """
        best: Trial | None = None
        for trial in self.trials:
            if self.dropped(trial) or trial.mean is None:
                continue
            if best is None or best.mean is None or compared(trial.mean) > compared(best.mean):
                best = trial
        return best

    def dropped(self, trial: Trial) -> bool:
        """Whether the trial was ended before its last seed because it was behind."""
        return trial.mean is not None and len(trial.scores) < max(len(other.scores) for other in self.trials)

    @property
    def edges(self) -> list[Edge]:
        """Each key of which the smallest or the largest number that was tried was chosen, of two or more."""
        found = []
        for key, value in () if self.chosen is None else self.chosen.values.items():
            tried = [_number(trial.values[key]) for trial in self.trials]
            numbers = {number for number in tried if number is not None}
            if None in tried or len(numbers) < 2:
                continue
            for end, edge in (("smallest", min(numbers)), ("largest", max(numbers))):
                if _number(value) == edge:
                    found.append(Edge(key, value, end))
        return found

    def followed_by(self, later: Study) -> Study:
        """What is kept of this study and a later one of the same overrides."""
        if self.chosen is None:
            return later
        if later.chosen is None:
            return self
        same = later.chosen.values == self.chosen.values
        return replace(later, reported=self.reported) if same and later.reported is None else later

    @property
    def overrides(self) -> list[str]:
        """The command's overrides with the chosen values.

        Raises:
            UserError: if nothing could be chosen.
        """
        if self.chosen is None:
            raise UserError("nothing could be chosen: every combination has a run that failed")
        return [*self.fixed, *overrides_of(self.chosen.values)]


@dataclass(frozen=True)
class Question:
    """What is chosen, for what, and by which score: files that agree in it can be joined."""

    measure: str
    seeds: tuple[int, ...]
    fixed: tuple[str, ...]  # overrides of all studies, sorted
    each: tuple[str, ...]  # the keys that are gone through, sorted
    keys: tuple[str, ...]  # the keys that are chosen, sorted

    @classmethod
    def of(
        cls, measure: str, seeds: Sequence[int], overrides: Sequence[str], each: Values, keys: Iterable[str]
    ) -> Question:
        """The question to which a study with these ``overrides`` belongs, ``each`` among them."""
        fixed = sorted(set(overrides) - set(overrides_of(each)))
        return cls(measure, tuple(seeds), tuple(fixed), tuple(sorted(each)), tuple(sorted(keys)))


@dataclass(frozen=True)
class Tuned:
    """The file: how the choices were made, and every study."""

    command: Sequence[str]  # the last one that wrote the file
    measure: str
    seeds: Sequence[int]
    studies: Sequence[Study]
    earlier: Sequence[Sequence[str]] = field(default_factory=list)  # commands that wrote to the file before
    subject: Mapping[str, str] = field(default_factory=dict)  # the table, column and scale that it is for; or empty

    @classmethod
    def kept(cls, path: Path, agreeing: Callable[[Tuned], Iterable[Compared]], option: str) -> Tuned | None:
        """The file to which a later command adds; None if there is none yet.

        Args:
            path: the file.
            agreeing: what the file and the command must have in common, for readers, and what each of them has.
            option: how the command names another file, for the message.

        Raises:
            UserError: if they differ in any of it.
        """
        if not path.exists():
            return None
        before = cls.load(path)
        for what, there, here in agreeing(before):
            if [*there] != [*here]:
                raise UserError(
                    f"{path} has other {what}: {_listed(there)}, not {_listed(here)}; give another {option}"
                )
        return before

    @property
    def edges(self) -> Mapping[Edge, Sequence[Study]]:
        """The choices at an edge of what was tried, by this edge."""
        at: dict[Edge, list[Study]] = {}
        for study in self.studies:
            for edge in study.edges:
                at.setdefault(edge, []).append(study)
        return at

    @property
    def untraced(self) -> int:
        """The number of runs whose scores the file has without a trace."""
        return sum(len(row.scored - {*row.traces}) for row in self._rows)

    @property
    def scored(self) -> int:
        """The number of runs whose scores the file has."""
        return sum(len(row.scored) for row in self._rows)

    @property
    def _rows(self) -> Iterator[Trial | Reported]:
        for study in self.studies:
            yield from study.trials
            if study.reported is not None:
                yield study.reported

    @property
    def question(self) -> Question:
        """What the studies answer."""
        first = self.studies[0]
        return Question.of(self.measure, self.seeds, first.fixed, first.each, first.trials[0].values)

    def has(self, each: Values, grid: Iterable[Values], report: Iterable[int], *, traced: bool) -> bool:
        """Whether a choice for ``each`` among the combinations of ``grid`` is here, with results under ``report``.

        With ``traced``, all of its runs must have a trace, too.
        """
        wanted = {frozenset(values.items()) for values in grid}
        for study in self.studies:
            if dict(study.each) != dict(each) or study.chosen is None:
                continue
            reported = set() if study.reported is None else study.reported.scored
            tried = {frozenset(trial.values.items()) for trial in study.trials}
            if tried == wanted and {*report} <= reported:
                return not traced or not replace(self, studies=[study]).untraced
        return False

    def with_added(self, later: Tuned) -> Tuned:
        """These studies and those of a later command to the same question, which replace those for the same ``each``.

        Results of a choice that has not changed stay if the later command reports none, and a study in which something
        was chosen stays if the later one could choose nothing.
        """
        by_each = {frozenset(study.each.items()): study for study in self.studies}
        for study in later.studies:
            each = frozenset(study.each.items())
            before = by_each.get(each)
            by_each[each] = study if before is None else before.followed_by(study)
        commands = [tuple(command) for command in (*self.earlier, self.command)]
        earlier = [list(command) for command in dict.fromkeys(commands) if command != tuple(later.command)]
        return replace(later, studies=list(by_each.values()), earlier=earlier)

    def save(self, path: Path) -> None:
        """Write the file whole or not at all.

        Raises:
            UserError: if it cannot be written.
            DiskFullError: if the disk is full.
        """
        text = self._text()
        save_output(str(path), path, (json.dumps({**text, CHECKSUM: _checksum(text)}, indent=1) + "\n").encode())

    def _text(self) -> dict[str, Any]:
        """What the file holds: all fields, and what follows from them for readers."""
        text: dict[str, Any] = {"format": FORMAT, **asdict(self)}
        for study, entry in zip(self.studies, text["studies"], strict=True):
            for trial, row in zip(study.trials, entry["trials"], strict=True):
                row |= {"mean": trial.mean, "deviation": trial.deviation}
            entry["chosen"] = None if study.chosen is None else dict(study.chosen.values)
        compact(text)
        return text

    @classmethod
    def load(cls, path: Path) -> Tuned:
        """The file at ``path``.

        Raises:
            UserError: if there is none, it is none of this command's, or it is damaged: it is not what was written, or
                its means and choices are not those of its scores.
        """
        from pydantic import TypeAdapter, ValidationError

        try:
            text = read_json_file(path)
            if text["format"] != FORMAT:
                raise ValueError(f"format {text['format']}")
            tuned = TypeAdapter(cls).validate_json(json.dumps(expanded(text)), strict=True)
        except FileNotFoundError:
            raise UserError(f"there is no {path}; flnl tune writes it") from None
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            raise UserError(f"{path} is no file of flnl tune ({where}: {first['msg']})") from None
        except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
            raise UserError(f"{path} is no file of flnl tune ({error})") from None
        if not tuned.studies or not all(study.trials for study in tuned.studies):
            raise UserError(f"{path} is no file of flnl tune (a study without trials, or none at all)")
        if (fault := _fault(text, tuned)) is not None:
            raise UserError(f"{path} is damaged: {fault}; restore it, or tune again")
        return tuned


def _number(value: str) -> float | None:
    """The value as a number; None for a name, a list and NaN."""
    try:
        number = float(value)
    except ValueError:
        return None
    return None if math.isnan(number) else number


def _checksum(text: Mapping[str, Any]) -> str:
    """The sha256 of a file's content, however it is laid out; 64 hex digits."""
    content = {key: value for key, value in text.items() if key != CHECKSUM}
    held = json.loads(json.dumps(content))  # with texts as keys: numbers would be in another order
    return hashlib.sha256(json.dumps(held, sort_keys=True).encode()).hexdigest()


def _fault(text: Mapping[str, Any], tuned: Tuned) -> str | None:
    """Where a file contradicts itself; None if it does not. The first version wrote no checksum."""
    for study, entry in zip(tuned.studies, text["studies"], strict=True):
        reported = study.reported
        if reported is not None and (other_score := _other_score(reported.scores, reported.traces)) is not None:
            return other_score
        for trial, row in zip(study.trials, entry["trials"], strict=True):
            if (other_score := _other_score({tuned.measure: trial.scores}, trial.traces)) is not None:
                return other_score
            if other := sorted({*trial.scores} - {*tuned.seeds}):
                return f"it has a score under seed {other[0]}, which is none of its seeds"
            for name, value in (("mean", trial.mean), ("deviation", trial.deviation)):
                if not same(row.get(name, value), value):
                    values = " ".join(overrides_of(trial.values))
                    return f"the {name} of {values} is {row[name]}, and its scores give {value}"
        chosen = None if study.chosen is None else dict(study.chosen.values)
        if entry.get("chosen", chosen) != chosen:
            return f"its choice is {entry['chosen']}, and the means give {chosen}"
    if text.get(CHECKSUM, _checksum(text)) != _checksum(text):
        return "its content is not what was written"
    return None


def _other_score(scores: Mapping[str, Mapping[int, float | None]], traces: Mapping[int, Trace]) -> str | None:
    """Where scores, by measure and seed, are not those of the runs' metrics; None if they are."""
    for measure, by_seed in scores.items():
        for seed, trace in traces.items():
            held, value = by_seed.get(seed), trace.metrics.get(measure)
            if value is not None and not same(held, value):
                return f"{measure} under seed {seed} is {held}, and the run's metrics say {value}"
    return None


def _listed(values: Sequence[object]) -> str:
    return ", ".join(map(str, values)) or "none"
