"""Trials, their scores, the choice, and the file that holds all of it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from flnl.core.errors import UserError
from flnl.storage.output_file import write_output
from flnl.tune.space import Values, overrides_of

FORMAT = 1


@dataclass(frozen=True)
class Trial:
    """One combination of values, with its score under each seed. A run that failed has none."""

    values: Values
    scores: Mapping[int, float | None]  # by seed
    runs: Mapping[int, str] = field(default_factory=dict)  # folders, by seed

    @property
    def mean(self) -> float | None:
        """The mean score over seeds; None if a run failed."""
        scores = list(self.scores.values())
        if not scores or any(score is None or not math.isfinite(score) for score in scores):
            return None
        return fmean(score for score in scores if score is not None)

    @property
    def deviation(self) -> float | None:
        """The standard deviation over seeds (divided by the count less one); None of one seed or a failed run."""
        if self.mean is None or len(self.scores) < 2:
            return None
        return stdev(score for score in self.scores.values() if score is not None)


@dataclass(frozen=True)
class Study:
    """What was tried for one command, in order, and what was chosen."""

    each: Values  # the values of the keys that were gone through, one study for each combination
    fixed: Sequence[str]  # overrides of every trial
    trials: Sequence[Trial]

    @property
    def chosen(self) -> Trial | None:
        """The trial with the highest mean; of equal ones the first. None if every trial has a failed run."""
        best: Trial | None = None
        for trial in self.trials:
            if trial.mean is not None and (best is None or best.mean is None or trial.mean > best.mean):
                best = trial
        return best

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
class Tuned:
    """The file ``tuned.json``: how was chosen, and every study."""

    command: Sequence[str]
    measure: str
    seeds: Sequence[int]
    studies: Sequence[Study]

    def save(self, path: Path) -> None:
        """Write the file whole or not at all.

        Raises:
            UserError: if it cannot be written.
        """
        text: dict[str, Any] = {"format": FORMAT, **asdict(self)}
        for study, entry in zip(self.studies, text["studies"], strict=True):
            for trial, row in zip(study.trials, entry["trials"], strict=True):
                row |= {"mean": trial.mean, "deviation": trial.deviation}
            entry["chosen"] = None if study.chosen is None else dict(study.chosen.values)
        write_output(path, (json.dumps(text, indent=1) + "\n").encode())

    @classmethod
    def load(cls, path: Path) -> Tuned:
        """The file at ``path``.

        Raises:
            UserError: if there is none, or it is none of this command's.
        """
        try:
            text = json.loads(path.read_text())
            if text["format"] != FORMAT:
                raise ValueError(f"format {text['format']}")
            studies = [
                Study(entry["each"], entry["fixed"], [_trial(row) for row in entry["trials"]])
                for entry in text["studies"]
            ]
            return cls(text["command"], text["measure"], text["seeds"], studies)
        except FileNotFoundError:
            raise UserError(f"there is no {path}; flnl tune writes it") from None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{path} is no file of flnl tune ({error})") from None


def _trial(row: Mapping[str, Any]) -> Trial:
    def by_seed(name: str) -> dict[int, Any]:
        return {int(seed): value for seed, value in row[name].items()}

    return Trial(row["values"], by_seed("scores"), by_seed("runs"))
