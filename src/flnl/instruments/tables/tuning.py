"""Choose hyperparameters of a table's methods in one of its columns: ``flnl tables tune``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flnl.config.choosable import CHOOSABLE, is_choosable, refusal
from flnl.config.override_text import key_of, value_of, without
from flnl.core.errors import UserError
from flnl.instruments.tables import load
from flnl.instruments.tables.choices import deciding
from flnl.instruments.tables.launch import check
from flnl.instruments.tables.scaling import Scaling
from flnl.instruments.tables.table import Column, Row, Table
from flnl.instruments.tune.checks import refuse_share
from flnl.instruments.tune.runs import Runs
from flnl.instruments.tune.scores import HELD_OUT, MARGIN, MEASURES, SHARE, VALIDATION, share_of
from flnl.instruments.tune.space import Interval, Space
from flnl.record.tuned import Compared, Study, Tuned, Values, overrides_of

FIRST_SEED = 101
"""Choices are made under this seed and those after it, which no scale has."""
DEFAULTS = {"measure": VALIDATION, "share": str(SHARE), "margin": "0.05", "seeds": "2"}
"""The options' defaults."""


@dataclass(frozen=True)
class Tuning:
    """What is to be chosen, and how."""

    table: Table
    column: Column
    scaling: Scaling
    grid: Sequence[str]  # the axes as overrides, as in train.lr=0.01,0.03
    seeds: Sequence[int]
    measure: str
    margin: float | None  # a difference of accuracies in [0, 1]; None: every combination is tried under every seed
    share: float = SHARE  # of each client's samples, held out for ``VALIDATION``

    @classmethod
    def of(cls, table: Table, scaling: Scaling, options: Mapping[str, Sequence[str]]) -> Tuning:
        """The tuning of the rows of ``table`` in its one column that the command's options describe, as written.

        Raises:
            UserError: for more than one column or one that cannot run, and for an option of a wrong value.
        """
        if len(table.columns) != 1:
            columns = ", ".join(column.label for column in table.columns)
            raise UserError(f"{table.name}: select one column by columns=LABEL, of {columns}")
        if (reason := table.columns[0].missing) is not None:
            raise UserError(f"{table.name}: {table.columns[0].label} cannot be run: {reason}")
        scaling = scaling.for_table(table)
        last = {name: options.get(name, (default,))[-1] for name, default in DEFAULTS.items()}
        measure = load.known(last["measure"], tuple(MEASURES), "measure")
        if "share" in options and measure != VALIDATION:
            raise UserError(f"share={last['share']}: only measure={VALIDATION} holds samples out; leave out share")
        seeds = [*range(FIRST_SEED, FIRST_SEED + int(last["seeds"]))]
        if shared := {*seeds} & {*scaling.of(table).seeds}:
            raise UserError(f"seed {min(shared)} is one of {table.name}'s: a choice under it would favour its results")
        margin = None if last["margin"] == "none" else share_of(last["margin"], f"{MARGIN}, or none", "margin=")
        share = share_of(last["share"], "share between 0 and 1", "share=")
        return cls(table, table.columns[0], scaling, options.get("grid", ()), seeds, measure, margin, share)

    @property
    def spaces(self) -> Sequence[tuple[Values, Space]]:
        """For each method of the table what a row of it decides, and the space that is searched.

        Raises:
            UserError: if the grid has nothing to choose from or a key that is no hyperparameter, no row is left, or two
                rows would have the same values.
        """
        spaces = [
            ({key_of(one): value_of(one) for one in deciding(row.overrides)}, self._space(row)) for row in self._rows()
        ]
        if not spaces:
            raise UserError(f"{self.table.name}: no row of a method can run in {self.column.label} at this scale")
        rows = [overrides_of(each) for each, _ in spaces]
        if twice := next((row for row in rows if rows.count(row) > 1), None):
            raise UserError(f"two rows are {' '.join(twice)} and would share one choice; select one of them by rows=")
        return spaces

    def run(self, launching: Sequence[str], command: Sequence[str]) -> Tuned:
        """Try every combination for each method; the ``command`` is for readers of the file, and goes on with it.

        Raises:
            UserError: if the grid or a run's configuration is wrong, or the launcher broke down.
        """
        spaces = self.spaces
        check(spaces[0][1].fixed, launching)
        if self.measure == VALIDATION:
            refuse_share([space for _, space in spaces], self.seeds, "share=")
        runs = Runs(self.seeds, self.measure, launching, command)
        trials = runs.grids([space for _, space in spaces], self.margin)
        studies = [Study(each, space.fixed, tried) for (each, space), tried in zip(spaces, trials, strict=True)]
        return Tuned(command, self.measure, self.seeds, studies, subject=self.subject)

    @property
    def subject(self) -> dict[str, str]:
        """What the choices are for; of a table of the user's without the name of a paper."""
        paper = {"paper": self.table.paper} if self.table.paper in load.PAPERS else {}
        place = {"table": self.table.name, "column": self.column.label, "scale": self.scaling.name}
        files = "any" if "dataset.verify=false" in self.scaling.overrides else "published"
        return {**paper, **place, "data files": files}

    def kept(self, file: Path) -> Tuned | None:
        """The choices for other rows that ``file`` has, to which this tuning's are added; None if there is no file.

        Raises:
            UserError: if they are for another column, or were made by another measure, under other seeds or of other
                keys.
        """

        def agreeing(before: Tuned) -> Iterator[Compared]:
            for what, value in self.subject.items():
                yield what, [before.subject.get(what, "none")], [value]
            yield "measure", [before.measure], [self.measure]
            yield "seeds", before.seeds, self.seeds
            held = [one for one in before.studies[0].fixed if key_of(one) == HELD_OUT]
            yield "shares that are held out", held, self._held
            yield "keys", sorted(before.studies[0].trials[0].values), sorted(axis.key for axis in self._axes.axes)

        return Tuned.kept(file, agreeing, "out=FILE")

    def _rows(self) -> Iterator[Row]:
        """The rows that are methods and can run."""
        return (row for row in self.table.rows if row.method and self.scaling.can_run(row, self.column))

    @property
    def _axes(self) -> Space:
        if not self.grid:
            raise UserError("nothing to choose from: add grid=train.lr=0.01,0.03")
        axes = Space.of(self.grid)
        if axes.fixed:
            raise UserError(f"grid={axes.fixed[0]}: give several values, as in grid=train.lr=0.01,0.03")
        for axis in axes.axes:
            if not is_choosable(axis.key) or deciding([axis.key]):
                raise UserError(
                    f"grid={axis.key}=: this key is no hyperparameter of a method; those begin with {CHOOSABLE}; "
                    "groups with train/"
                )
            if isinstance(axis, Interval):
                raise UserError(f"grid={axis.key}=: give values, as in grid=train.lr=0.01,0.03, and no interval")
            for one in (f"{axis.key}={value}" for value in axis.values):
                if (reason := refusal(one)) is not None:
                    raise UserError(f"grid={one}: {reason}")
        return axes

    def _space(self, row: Row) -> Space:
        """The cell's overrides without the keys that are chosen, and the grid."""
        axes, cell = self._axes.axes, self.scaling.resolve(row, self.column)
        replaced = [*(axis.key for axis in axes), *self._held]
        return Space((*without(cell, *map(key_of, replaced)), *self._held), axes)

    @property
    def _held(self) -> list[str]:
        """The override that holds samples out; none if the measure needs none."""
        return [f"{HELD_OUT}={self.share}"] if self.measure == VALIDATION else []
