"""The space that is searched: axes of values or intervals, in Hydra's syntax for sweeps; and the search by Optuna."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, IntervalSweep, Override
from hydra.errors import HydraException

from flnl.config import explain
from flnl.config.override_text import group_of, key_of, value_of, without
from flnl.console.extras import install
from flnl.core.errors import UserError
from flnl.record.tuned import Trial, Values, overrides_of

if TYPE_CHECKING:
    import optuna


@dataclass(frozen=True)
class Choices:
    """An axis of given values."""

    key: str  # as typed: with a + if the key is to be added
    values: tuple[str, ...]


@dataclass(frozen=True)
class Interval:
    """An axis of all numbers from ``low`` to ``high``: whole numbers if both are; ``log`` searches logarithms."""

    key: str
    low: float
    high: float
    log: bool
    text: str = field(default="", compare=False)  # as typed

    def written(self, value: float) -> str:
        """A value of the interval: a whole number, or four digits, or more if it is narrow beside its ends."""
        if isinstance(value, int):
            return str(value)
        narrow = math.log10(max(abs(self.low), abs(self.high)) / (self.high - self.low))
        text = f"{value:.{4 + max(0, round(narrow))}g}"
        return text if self.low <= float(text) <= self.high else repr(value)


@dataclass(frozen=True)
class Space:
    """A command's overrides in two: those that every trial has, and the axes."""

    fixed: tuple[str, ...]
    axes: tuple[Choices | Interval, ...]

    @classmethod
    def of(cls, arguments: Sequence[str]) -> Space:
        """The space of overrides such as ``train.lr=0.01,0.1`` or ``train.lr=tag(log,interval(0.001,0.1))``.

        Raises:
            UserError: if an argument is no override, none is an axis, or the key of an axis is given twice.
        """
        try:
            overrides = OverridesParser.create().parse_overrides(list(arguments))
        except HydraException as error:
            raise UserError(explain.explain(error, arguments)) from None
        swept = [each for each in overrides if each.is_sweep_override()]
        axes = tuple(_axis(each) for each in swept)
        if not axes:
            raise UserError("nothing to choose from: give a key several values, as in train.lr=0.003,0.01,0.03,0.1")
        axis_keys = [key_of(axis.key) for axis in axes]
        if doubled := [key for key in axis_keys if axis_keys.count(key) > 1]:
            raise UserError(f"{doubled[0]} is given more than once; give its values in one override")
        fixed = tuple(str(each.input_line) for each in overrides if not each.is_sweep_override())
        for one in fixed:
            if key_of(one) in axis_keys:
                several = swept[axis_keys.index(key_of(one))].input_line
                raise UserError(f"{one} and {several}: give {key_of(one)} one value, or several to choose from")
        return cls(fixed, axes)

    @property
    def first(self) -> Values:
        """The first value of each axis, of an interval its lower end."""
        return {axis.key: axis.values[0] if isinstance(axis, Choices) else axis.written(axis.low) for axis in self.axes}

    def grid(self) -> Iterator[Values]:
        """Every combination of the axes' values, the last axis fastest.

        Raises:
            UserError: if an axis is an interval.
        """
        for axis in self.axes:
            if isinstance(axis, Interval):
                raise UserError(f"{axis.key} is an interval, which a grid cannot cover: add --trials N to search it")
        keys = [axis.key for axis in self.axes]
        for values in itertools.product(*(axis.values for axis in self.axes if isinstance(axis, Choices))):
            yield dict(zip(keys, values, strict=True))

    def split(self, keys: Sequence[str]) -> list[tuple[Values, Space]]:
        """A space for each combination of the values of ``keys``, with that combination. A key may have one value.

        Raises:
            UserError: if one of them has no values, or only an interval.
        """
        keys = list(dict.fromkeys(map(key_of, keys)))
        by_key = {key_of(one): Choices(one.partition("=")[0], (value_of(one),)) for one in self.fixed}
        by_key |= {key_of(axis.key): axis for axis in self.axes if isinstance(axis, Choices)}
        for key in keys:
            if key not in by_key:
                raise UserError(f"--each {key}: give {key} values to go through, as in {key}=A,B")
        rest = tuple(axis for axis in self.axes if key_of(axis.key) not in keys)
        if not rest:
            raise UserError("nothing to choose from: --each takes every key that has several values")
        fixed = without(self.fixed, *keys)
        taken = [by_key[key] for key in keys]
        combinations = itertools.product(*(axis.values for axis in taken))
        chosen = [dict(zip([axis.key for axis in taken], values, strict=True)) for values in combinations]
        return [(values, Space((*fixed, *overrides_of(values)), rest)) for values in chosen]

    def suggested(self, trial: optuna.Trial) -> Values:
        """The values that Optuna suggests for a trial."""
        values = {}
        for axis in self.axes:
            if isinstance(axis, Choices):
                values[axis.key] = str(trial.suggest_categorical(axis.key, axis.values))
            elif isinstance(axis.low, int) and isinstance(axis.high, int):
                values[axis.key] = axis.written(trial.suggest_int(axis.key, axis.low, axis.high, log=axis.log))
            else:
                values[axis.key] = axis.written(trial.suggest_float(axis.key, axis.low, axis.high, log=axis.log))
        return values


def optuna_search(space: Space, evaluate: Callable[[Sequence[Values]], list[Trial]], trials: int) -> list[Trial]:
    """``trials`` combinations that a tree-structured Parzen estimator suggests, one after another.

    Its seed is fixed, so that a search that was stopped asks for the same combinations again, whose runs are there.

    Raises:
        UserError: if Optuna is not installed.
    """
    try:
        import optuna
    except ModuleNotFoundError:
        raise UserError(f"--trials searches with Optuna: {install('hpo')}") from None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.TPESampler(seed=0))
    tried: dict[tuple[tuple[str, str], ...], Trial] = {}
    for _ in range(trials):
        asked = study.ask()
        values = space.suggested(asked)
        name = tuple(values.items())
        if name not in tried:
            (tried[name],) = evaluate([values])
        mean = tried[name].mean
        if mean is None:
            study.tell(asked, state=optuna.trial.TrialState.FAIL)
        else:
            study.tell(asked, mean)
    return list(tried.values())


def _axis(override: Override) -> Choices | Interval:
    key = override.get_key_element()
    sweep = override.value()
    if isinstance(sweep, Glob):
        raise UserError(
            f"{override.input_line}: glob finds options in sweeps alone; write them as {key}=A,B"
            + (
                ""
                if group_of(key)
                else f", numbers also as {key}=range(1,4) or, with --trials N, {key}=interval(0.1,1)"
            )
        )
    if isinstance(sweep, IntervalSweep):
        assert sweep.start is not None
        assert sweep.end is not None
        if not sweep.start < sweep.end:
            raise UserError(f"{override.input_line}: the interval is empty; its second end must be the larger one")
        log = "log" in sweep.tags
        if log and sweep.start <= 0:
            raise UserError(f"{override.input_line}: a logarithmic interval begins above zero")
        return Interval(key, sweep.start, sweep.end, log, str(override.input_line))
    values = tuple(dict.fromkeys(map(str, override.sweep_string_iterator())))
    if not values:
        raise UserError(f"{override.input_line} stands for no value at all")
    return Choices(key, values)
