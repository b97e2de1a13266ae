"""From a row and a column to the overrides of a run, at a scale.

The overrides of a scale come after the column's experiment and before all other overrides of the column and the row: a
scale replaces data, protocol and network, and keeps partition, noise and method. It can also replace single overrides
of a table, and declare overrides unavailable, which makes their cells ``n/a``. What ``flnl tune`` chose comes last.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache

import yaml

from flnl.config.folders import CONF
from flnl.core.errors import UserError
from flnl.storage.tuned import Tuned, overrides_of
from flnl.tables.results import Scale
from flnl.tables.table import Column, Row, Table

FIRST = ("experiment",)
"""Groups whose choice comes before a scale's overrides."""
DECIDING = ("method", "centralized")
"""Keys that decide, with the parts of a method, what a row is. What was chosen for one such row is not another's."""


@dataclass(frozen=True)
class Chosen:
    """Overrides that were chosen for cells of one method."""

    when: frozenset[str]  # overrides that a cell must have, the method among them; it may choose no other parts
    overrides: tuple[str, ...]

    def fits(self, cell: Iterable[str]) -> bool:
        """Whether these overrides of a cell are of the method that was tuned."""
        return self.when <= set(cell) and set(deciding(cell)) <= self.when


@dataclass(frozen=True)
class Choices:
    """What a file of ``flnl tune`` or ``flnl tables tune`` chose, for readers too."""

    chosen: tuple[Chosen, ...]
    sentence: str
    only: str | None = None  # the paper, or one's own table, that the choices are for; None: all tables

    @classmethod
    def of(cls, tuned: Tuned) -> Choices:
        """Those of a file. A study of which every combination failed has no part in them.

        Raises:
            UserError: if a study names no method, two are of the same one, or none of them chose anything.
        """
        chosen = []
        for study in tuned.studies:
            when = deciding(study.fixed)
            if not any(key_of(one) == "method" for one in when):
                raise UserError("it names no method: make it by flnl tune method=A,B --each method")
            if study.chosen is not None:
                chosen.append(
                    Chosen(frozenset({*when, *overrides_of(study.each)}), tuple(overrides_of(study.chosen.values)))
                )
        if not chosen:
            raise UserError("it has no choice: every combination has a run that failed")
        if len({one.when for one in chosen}) < len(chosen):
            raise UserError("it has two choices for one method")
        keys = ", ".join(dict.fromkeys(key_of(override) for one in chosen for override in one.overrides))
        methods = ", ".join(" ".join(sorted(one.when)) for one in chosen)
        commands = ", ".join(f"`{shlex.join(command)}`" for command in (*tuned.earlier, tuned.command))
        only = tuned.subject.get("paper") or tuned.subject.get("table")
        where = f" in the tables of {only}" if only else ""
        return cls(tuple(chosen), f"{keys}{where}: chosen for {methods} by {commands}.", only)

    def concern(self, table: Table) -> bool:
        """Whether these choices are for the table."""
        return self.only in (None, table.paper, table.name)


@dataclass(frozen=True)
class Scaling:
    """How a scale changes the overrides of tables."""

    name: str
    title: str
    changes: tuple[str, ...]  # sentences for readers of a table
    seeds: tuple[int, ...] | None  # at least one; None: as many as the paper has trials
    overrides: tuple[str, ...]
    instead: Mapping[str, tuple[str, ...]]  # an override of a table -> its replacements
    unavailable: Mapping[str, str]  # an override, or a pattern of overrides -> why it is unavailable here
    papers: bool = False  # whether the conditions are the papers'
    choices: tuple[Choices, ...] = ()

    def tuned(self, choices: Iterable[Choices]) -> Scaling:
        """The scale with what was chosen, for some tables or for all."""
        return replace(self, choices=(*self.choices, *choices))

    def for_table(self, table: Table) -> Scaling:
        """The scale with those choices that concern the table, which readers are told of."""
        own = tuple(one for one in self.choices if one.concern(table))
        title = f"{self.title}, tuned" if own else self.title
        return replace(self, title=title, changes=(*self.changes, *(one.sentence for one in own)), choices=own)

    def untuned(self, tables: Iterable[Table]) -> list[str]:
        """Lines that name the methods' rows for which nothing was chosen; empty if nothing was tuned at all."""
        if not self.choices:
            return []
        lines = []
        for table in tables:
            own = [one for choices in self.for_table(table).choices for one in choices.chosen]
            cells = {row.label: [cell_overrides(row, c) for c in table.columns] for row in table.rows if row.method}
            rows = [label for label, of in cells.items() if not any(one.fits(cell) for one in own for cell in of)]
            if rows:
                lines.append(f"in {table.name}, nothing was tuned for {', '.join(rows)}")
        return lines

    def unverified(self) -> Scaling:
        """The scale with data files that need not be the published ones."""
        return replace(self, overrides=(*self.overrides, "dataset.verify=false"))

    def unused(self, tables: Iterable[Table]) -> list[str]:
        """What was chosen for cells that no table has, by the overrides of such cells."""
        cells = [(t, cell_overrides(row, column)) for t in tables for row in t.rows for column in t.columns]
        return [
            " ".join(sorted(one.when))
            for choices in self.choices
            if choices.only is None or any(choices.concern(table) for table, _ in cells)
            for one in choices.chosen
            if not any(choices.concern(table) and one.fits(cell) for table, cell in cells)
        ]

    def of(self, table: Table, seeds: int | None = None) -> Scale:
        """The description of this scale for ``table``.

        If ``seeds`` is given, take that many seeds: the first ones, and beyond them the numbers after the largest.
        """
        chosen = tuple(range(1, (table.trials or 1) + 1)) if self.seeds is None else self.seeds
        if seeds is not None:
            after = max(chosen) + 1
            chosen = (*chosen, *range(after, after + seeds - len(chosen)))[:seeds]
        return Scale(self.name, self.title, self.changes, chosen, self.papers)

    def unmatched(self, tables: Iterable[Table]) -> list[str]:
        """The overrides and patterns of ``instead`` and ``unavailable`` that match no cell of ``tables``."""
        overrides = {one for t in tables for row in t.rows for c in t.columns for one in cell_overrides(row, c)}
        return [override for override in self.instead if override not in overrides] + [
            pattern for pattern in self.unavailable if not any(fnmatchcase(one, pattern) for one in overrides)
        ]

    def not_available(self, row: Row, column: Column) -> str | None:
        """Why the cell is unavailable at this scale; None if it is available."""
        for override in cell_overrides(row, column):
            for pattern, reason in self.unavailable.items():
                if fnmatchcase(override, pattern):
                    return reason
        return None

    def keeps_data(self, row: Row, column: Column) -> bool:
        """Whether the cell's runs have the data set that the table says."""
        return data_set(self.resolve(row, column)) == data_set(cell_overrides(row, column))

    def resolve(self, row: Row, column: Column) -> tuple[str, ...]:
        """The overrides of the cell's runs, without a seed; of several overrides of a key, the last one counts.

        >>> scaling = Scaling("s", "", (), (1,), ("dataset=digits", "model=mlp"), {"lr=3": ()}, {})
        >>> column = Column("c", ("experiment=x", "noise.rho=0.6"))
        >>> scaling.resolve(Row("r", "r", ("method=fedavg", "model=cnn", "lr=3"), None), column)
        ('experiment=x', 'dataset=digits', 'model=cnn', 'noise.rho=0.6', 'method=fedavg')
        """
        written = cell_overrides(row, column)
        replaced = [new for old in written for new in self.instead.get(old, (old,))]
        first = [override for override in replaced if key_of(override) in FIRST]
        every = (one for choices in self.choices for one in choices.chosen)
        chosen = [new for one in every if one.fits(written) for new in one.overrides]
        return _last(first + list(self.overrides) + [one for one in replaced if one not in first] + chosen)


def data_set(overrides: Sequence[str]) -> str | None:
    """The data set that the overrides of a cell choose, by name or by their experiment; None if they choose none.

    >>> data_set(["experiment=fedcorr/cifar10_iid", "noise.rho=0.6"])
    'cifar10'
    """
    for key in ("dataset", "experiment"):
        chosen = [override.split("=", 1)[1] for override in overrides if key_of(override) == key]
        if chosen:
            return chosen[-1] if key == "dataset" else _of_experiment(chosen[-1])
    return None


@cache
def _of_experiment(name: str) -> str | None:
    """The data set in the defaults of an experiment's file in ``conf/``; None if there is none."""
    file = CONF / "experiment" / f"{name}.yaml"
    defaults = yaml.safe_load(file.read_text(encoding="utf-8"))["defaults"] if file.is_file() else ()
    return next((entry["override /dataset"] for entry in defaults if "override /dataset" in entry), None)


def cell_overrides(row: Row, column: Column) -> list[str]:
    """The overrides of a cell before scaling."""
    further = [one for trigger, overrides in row.where if triggers(trigger) <= {*column.overrides} for one in overrides]
    return [*column.overrides, *row.overrides, *further]


def deciding(overrides: Iterable[str]) -> list[str]:
    """The overrides that decide what a row is: its method, the parts that it chooses, and whether it is centralised."""
    return [one for one in overrides if key_of(one) in DECIDING or one.startswith("method/")]


def triggers(where: str) -> set[str]:
    """The overrides, separated by spaces, all of which a column must have for a line of ``where`` to hold there."""
    return {*where.split()}


def key_of(override: str) -> str:
    """The key that an override sets.

    >>> key_of("+train.lr=0.1")
    'train.lr'
    """
    return override.lstrip("+").split("=")[0]


def _last(overrides: Sequence[str]) -> tuple[str, ...]:
    """Each key once, at its first position, with its last value."""
    return tuple({key_of(override): override for override in overrides}.values())


def merged(label: Iterable[str]) -> str:
    """One label for merged columns: common parts once, differing parts side by side.

    >>> merged(["CIFAR-10 · η=0.2", "CIFAR-100 · η=0.2"])
    'CIFAR-10/CIFAR-100 · η=0.2'
    """
    parts = [one.split(" · ") for one in label]
    if len({len(part) for part in parts}) > 1:
        return "/".join(dict.fromkeys(" · ".join(part) for part in parts))
    return " · ".join("/".join(dict.fromkeys(column)) for column in zip(*parts, strict=True))
