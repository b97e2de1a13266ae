"""From a row and a column to the overrides of a run, at a scale.

The overrides of a scale come after the column's experiment and before all other overrides of the column and the row: a
scale replaces data, protocol and network, and keeps partition, noise and method. It can also replace single overrides
of a table, and declare overrides unavailable, which makes their cells ``n/a``. What ``flnl tune`` chose comes last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

import yaml

from flnl.config.folders import CONF
from flnl.config.override_text import key_of, value_of, without_package
from flnl.instruments.tables.choices import Choices
from flnl.instruments.tables.results import Scale
from flnl.instruments.tables.table import Column, Row, Table

FIRST = ("experiment",)
"""Groups whose choice comes before a scale's overrides."""


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
        """The scale as it changes this table, with those choices that concern it, which readers are told of.

        In a table that is written for some scales, every override is as it is written: nothing is replaced, unavailable
        or tuned.
        """
        if table.scales:
            return replace(self, instead={}, unavailable={}, choices=())
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

        Its seeds are the table's own, or else the scale's. If ``seeds`` is given, take that many of them: the first
        ones, and beyond them the numbers after the largest.
        """
        chosen = table.seeds or self.seeds or tuple(range(1, (table.trials or 1) + 1))
        if seeds is not None:
            after = max(chosen) + 1
            chosen = (*chosen, *range(after, after + seeds - len(chosen)))[:seeds]
        return Scale(self.name, self.title, self.changes, chosen, self.papers, tuned=bool(self.choices))

    def favoured(self, tables: Iterable[Table], seeds: int | None = None) -> list[str]:
        """Lines that name the seeds of ``tables``, so many of them, under which something was chosen for them."""
        lines, tables = [], list(tables)
        for choices in self.choices:
            own = {seed for table in tables if choices.concern(table) for seed in self.of(table, seeds).seeds}
            if both := sorted(own & choices.seeds):
                names = ", ".join(" ".join(sorted(one.when)) for one in choices.chosen)
                these = f"seed{'s' if len(both) > 1 else ''} {', '.join(map(str, both))}"
                lines.append(
                    f"what was tuned for {names} was scored under {these}, which these tables have, too: their results "
                    "favour it"
                )
        return lines

    def unmatched(self, tables: Iterable[Table]) -> list[str]:
        """The overrides and patterns of ``instead`` and ``unavailable`` that match no cell of ``tables``."""
        overrides = {one for t in tables for row in t.rows for c in t.columns for one in cell_overrides(row, c)}
        return [override for override in self.instead if override not in overrides] + [
            pattern for pattern in self.unavailable if not any(fnmatchcase(one, pattern) for one in overrides)
        ]

    def can_run(self, row: Row, column: Column) -> bool:
        """Whether a cell has runs at this scale of its table."""
        return row.missing is None and column.missing is None and self.not_available(row, column) is None

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
        written, fixed = cell_overrides(row, column), row.overrides if row.own else ()
        replaced = [new for old in written for new in ((old,) if old in fixed else self.instead.get(old, (old,)))]
        first = [override for override in replaced if key_of(override) in FIRST]
        every = (one for choices in self.choices for one in choices.chosen if one.fits(written))
        keys = [*map(key_of, fixed)]
        chosen = [new for one in every for new in one.overrides if key_of(new) not in keys]
        return _last(first + list(self.overrides) + [one for one in replaced if one not in first] + chosen)


def data_set(overrides: Sequence[str]) -> str | None:
    """The data set that the overrides of a cell choose, by name or by their experiment, or else the default one.

    >>> data_set(["experiment=fedcorr/cifar10_iid", "noise.rho=0.6"]), data_set(["noise.rho=0.6"])
    ('cifar10', 'digits')
    """
    last = {key_of(override): value_of(override) for override in overrides}
    if chosen := last.get("dataset"):
        return chosen
    begun = _of_file(CONF / "experiment" / f"{last['experiment']}.yaml") if "experiment" in last else None
    return begun or _of_file(CONF / "config.yaml")


@cache
def _of_file(file: Path) -> str | None:
    """The data set that the defaults of a file in ``conf/`` choose, or of a file that it begins from; else None."""
    written = yaml.safe_load(file.read_text(encoding="utf-8")) if file.is_file() else None
    for entry in reversed((written or {}).get("defaults") or ()):
        if isinstance(entry, str):
            found = _of_file(file.parent / f"{without_package(entry)}.yaml")
        else:
            found = entry.get("override /dataset", entry.get("dataset"))
        if found is not None:
            return str(found)
    return None


def cell_overrides(row: Row, column: Column) -> list[str]:
    """The overrides of a cell before scaling."""
    further = [one for trigger, overrides in row.where if triggers(trigger) <= {*column.overrides} for one in overrides]
    return [*column.overrides, *row.overrides, *further]


def triggers(where: str) -> set[str]:
    """The overrides, separated by spaces, all of which a column must have for a line of ``where`` to hold there."""
    return {*where.split()}


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
