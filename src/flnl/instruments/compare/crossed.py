"""A measure of rows in several settings, as papers print it: rows, columns, the best of a column, and paired tests."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from statistics import fmean

from flnl.console.suggestions import instead
from flnl.console.terminal import visible
from flnl.console.ties import compared
from flnl.console.words import counted
from flnl.core.errors import UserError
from flnl.core.grouping import group_by_key
from flnl.instruments.compare.names import GROUPS, Settings, differing_keys, override
from flnl.instruments.compare.ranking import FEWEST_METHODS, Ranking, Setting, ranked
from flnl.instruments.compare.runs import Draw, Row, given_to, of_setting
from flnl.instruments.compare.selection import check_key, ordered, same
from flnl.instruments.compare.significance import LEVEL, Paired, fewest, holm, least
from flnl.instruments.compare.table import Column, Number
from flnl.record.run import RunRecord

BEST = "best"
"""The reference that is the best row of each column."""


@dataclass(frozen=True)
class Label:
    """A row or column: the values of its keys; None where runs have no such key."""

    keys: tuple[str, ...]
    values: tuple[str | None, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """Each key with its value, as the lines of a heading."""
        return tuple(
            visible(f"no {key}" if value is None else override(key, value))
            for key, value in zip(self.keys, self.values, strict=True)
        )

    @property
    def heading(self) -> str:
        """The text of a column."""
        return ", ".join(self.parts)

    @property
    def name(self) -> str:
        """The text of a row: of choices, such as the method, the value alone."""
        if len(self.keys) == 1:
            return self.parts[0] if self.values[0] is None else visible(self.values[0])
        pairs = zip(self.keys, self.values, self.parts, strict=True)
        return " ".join(visible(value) if key in GROUPS else part for key, value, part in pairs if value is not None)


@dataclass(frozen=True)
class Cell:
    """The runs of a row in a column, and their values of the measure by draw; finite values alone."""

    row: Row
    values: Mapping[Draw, float]

    @cached_property
    def number(self) -> Number | None:
        """Mean and deviation; None without a value."""
        return Number.of(list(self.values.values()))


@dataclass(frozen=True)
class Comparison:
    """A row beside a reference of its column; p-values with Holm's correction are over all comparisons of a table."""

    column: int
    row: int
    reference: int
    against: str
    paired: Paired
    t: float | None = None
    wilcoxon: float | None = None


@dataclass(frozen=True)
class Crossed:
    """Rows by columns; a cell is missing where there are no runs."""

    measure: Column
    rows: tuple[Label, ...]
    columns: tuple[Label, ...]
    cells: Mapping[tuple[int, int], Cell]
    against: tuple[str, ...] = (BEST,)

    @cached_property
    def names(self) -> list[str]:
        """The names of the rows, marked with what their methods were given."""
        runs: list[list[RunRecord]] = [[] for _ in self.rows]
        for (i, _), cell in self.cells.items():
            runs[i] += cell.row.runs
        return [f"{row.name}{given_to(own)}" for row, own in zip(self.rows, runs, strict=True)]

    def column(self, j: int) -> dict[int, Cell]:
        """The cells of a column that have a number, by row."""
        found = ((i, self.cells.get((i, j))) for i in range(len(self.rows)))
        return {i: cell for i, cell in found if cell is not None and cell.values}

    def heading(self, j: int) -> str:
        """The heading of a column; the measure if there is only one."""
        return self.columns[j].heading or self.measure.heading

    # --------------------------------------------------------------------------------------------------------- best

    def one_setting(self, j: int) -> bool:
        """Whether the cells of a column are of the same data, partition and noise."""
        return len({json.dumps(c.row.setting, sort_keys=True, default=str) for c in self.column(j).values()}) <= 1

    def equal_seeds(self, j: int) -> bool:
        """Whether the cells of a column are of the same draws."""
        return len({frozenset(cell.values) for cell in self.column(j).values()}) <= 1

    def means(self, j: int) -> dict[int, float]:
        """The means of a column as they are compared, by row."""
        return {i: compared(cell.number.mean) for i, cell in self.column(j).items() if cell.number is not None}

    def best(self, j: int) -> list[int]:
        """The rows with the best mean of a column: none of one row, of unequal seeds, or of several settings."""
        means = self.means(j)
        if len(means) < 2 or self.measure.higher is None or not self.equal_seeds(j) or not self.one_setting(j):
            return []
        best = (max if self.measure.higher else min)(means.values())
        return [i for i, mean in means.items() if mean == best]

    # -------------------------------------------------------------------------------------------------------- tests

    @cached_property
    def comparisons(self) -> list[Comparison]:
        """Every row beside the references, in each column of one setting; a pair of rows once."""
        found: dict[tuple[int, frozenset[int]], Comparison] = {}
        for against in self.against:
            baseline = None if against == BEST else self._baseline(against)
            for j in range(len(self.columns)):
                cells = self.column(j)
                reference = next(iter(self.best(j)), None) if baseline is None else baseline
                if reference not in cells or not self.one_setting(j):
                    continue
                for i in (i for i in cells if i != reference):
                    paired = Paired.of(cells[i].values, cells[reference].values)
                    found.setdefault((j, frozenset((i, reference))), Comparison(j, i, reference, against, paired))
        every = list(found.values())
        t, signed = holm([one.paired.t for one in every]), holm([one.paired.wilcoxon for one in every])
        return [replace(one, t=t[k], wilcoxon=signed[k]) for k, one in enumerate(every)]

    def _baseline(self, against: str) -> int:
        """The row of a baseline: its name, or a key with its value.

        Raises:
            UserError: unless it is one row.
        """
        key, _, value = against.partition("=")
        names = [row.name for row in self.rows]
        values = [dict(zip(row.keys, row.values, strict=True)) for row in self.rows]
        found = [i for i, row in enumerate(self.rows) if against in (row.name, row.heading)]
        found = found or [i for i, of in enumerate(values) if key in of and same(of[key], value)]
        if not found:
            raise UserError(f"--against {against} is no row of the table; {instead(value or against, [*names, BEST])}")
        if len(found) > 1:
            several = ", ".join(names[i] for i in found)
            raise UserError(f"--against {against} is several rows: {several}; name one of them")
        return found[0]

    def marks(self, i: int, j: int) -> str:
        """``t`` and ``w``: by which tests a cell differs significantly from the first reference."""
        for one in self.comparisons:
            if (one.row, one.column, one.against) == (i, j, self.against[0]):
                return "".join(mark for mark, p in (("t", one.t), ("w", one.wilcoxon)) if p is not None and p < LEVEL)
        return ""

    @cached_property
    def ranking(self) -> Ranking[Setting] | None:
        """The rows ranked over the columns in which all have equal seeds on the same data; None without one."""
        if self.measure.higher is None:
            return None
        sign = 1 if self.measure.higher else -1
        settings = []
        for j in filter(self.best, range(len(self.columns))):
            numbers = {self.rows[i].name: sign * mean for i, mean in self.means(j).items()}
            cells = self.column(j).items()
            runs = {self.rows[i].name: tuple(str(run.folder) for run in cell.row.runs) for i, cell in cells}
            settings.append(Setting(self.heading(j), numbers, runs))
        return ranked(settings)

    # -------------------------------------------------------------------------------------------------------- notes

    @cached_property
    def usual(self) -> frozenset[Draw]:
        """The draws that most cells have."""
        counts = Counter(frozenset(cell.values) for cell in self.cells.values() if cell.values)
        return max(counts, key=lambda draws: (counts[draws], len(draws), sorted(draws)), default=frozenset())

    @cached_property
    def notes(self) -> list[str]:
        """What the numbers are, what is bold, and what the tests say: a sentence or two each."""
        return [*self._numbers(), *self._compared(), *self._tested(), *self._over_columns()]

    def _numbers(self) -> Iterable[str]:
        several = len(self.usual) > 1
        over = "mean ± sample standard deviation (n − 1) over" if several else "of"
        unequal = any(frozenset(cell.values) != self.usual for cell in self.cells.values() if cell.values)
        yield f"{self.measure.heading}: {over} {_seeds(self.usual)}{' unless n is given' * unequal}."

    def _compared(self) -> Iterable[str]:
        if self.measure.higher is None:
            yield f"Whether more is better of {self.measure.heading} is not known here, so none is bold."
        elif any(map(self.best, range(len(self.columns)))):
            yield f"Bold: the {'highest' if self.measure.higher else 'lowest'} mean of a column."
        for j in range(len(self.columns)):
            cells = self.column(j)
            if not self.one_setting(j):
                yield (
                    f"{self.heading(j)}: rows of other data, partitions or noise do not compare, so none is bold; "
                    "name what differs in --columns."
                )
            elif not self.equal_seeds(j):
                seeds = "; ".join(f"{self.names[i]} {_seeds(cell.values)}" for i, cell in cells.items())
                yield f"{self.heading(j)}: unequal seeds ({seeds}), so none is bold."

    def _tested(self) -> Iterable[str]:
        tested = [one for one in self.comparisons if one.paired.t is not None or one.paired.wilcoxon is not None]
        if not tested:
            if self.comparisons:
                yield "No test: it takes two seeds that both rows have."
            return
        first = self.against[0]
        of = "the best of its column" if first == BEST else self.rows[self._baseline(first)].name
        number = len(tested)
        over = f" after Holm's correction over {counted(number, 'comparison')}" if number > 1 else ""
        marked = "".join(self.marks(one.row, one.column) for one in tested)
        what = f"from {of} (p < {LEVEL:g}{over}; runs are paired by seed)"
        told = {"t": "by a paired t test", "w": "by Wilcoxon's signed-rank test"}
        if marked:
            yield "; ".join(f"{m}: differs {told[m]}" for m in told if m in marked) + f" {what}."
        if missing := [text for mark, text in told.items() if mark not in marked]:
            yield f"No row differs significantly {' or '.join(missing)} {what}."
        pairs = max(len(one.paired.differences) for one in tested)
        if number * least(pairs) >= LEVEL:
            yield (
                f"With {counted(pairs, 'pair')} the p-value of Wilcoxon's test is {least(pairs):.2g} at least"
                f"{f', {min(1.0, number * least(pairs)):.2g} after the correction' if number > 1 else ''}: "
                f"no difference is significant below {fewest(number)} seeds, however clear it is."
            )
        if BEST in self.against:
            yield (
                "The best was found in the same numbers, so its p-values are optimistic; --against names a baseline "
                "that was chosen before."
            )

    def _over_columns(self) -> Iterable[str]:
        if self.ranking is None or len(self.columns) < 2 or len(self.rows) < FEWEST_METHODS:
            return
        ranks = ", ".join(f"{name} {rank:.2f}" for name, rank in self.ranking.mean_ranks.items())
        left = f" (without {', '.join(self.ranking.without_methods)})" if self.ranking.without_methods else ""
        yield f"Mean ranks over {counted(len(self.ranking.settings), 'column')}{left}: {ranks}."
        yield self.ranking.verdict + ("" if self.ranking.too_few else " Columns that share data are not independent.")


def _seeds(draws: Iterable[Draw]) -> str:
    """Draws in words: seeds, with the data seed where it is another."""
    texts = [str(seed) if seed == data else f"{seed} (data {data})" for seed, data in sorted(draws)]
    return f"seed{'' if len(texts) == 1 else 's'} {', '.join(texts)}"


# ------------------------------------------------------------------------------------------------------------- cross


def crossed(
    rows: Sequence[Row],
    measure: Column,
    row_keys: Sequence[str] | None = None,
    column_keys: Sequence[str] | None = None,
    against: Sequence[str] = (),
    *,
    by_name: bool = False,
) -> Crossed:
    """Cross rows by their keys.

    Args:
        rows: rows of runs, each for one cell.
        measure: what the cells show.
        row_keys: by default the keys in which runs differ beside ``column_keys``.
        column_keys: by default what else they differ in; without ``row_keys``, what of it says on which data,
            partition and noise methods are compared.
        against: references of the tests, as in ``method=fedavg``; by default the best of each column.
        by_name: whether rows are in the order of their values; by default the best mean over columns is first.

    Raises:
        UserError: for a key that no run has, rows that share a cell, a reference that is no row.
    """
    settings = [Settings(row) for row in rows]
    known = {key for one in settings for key in one.values}
    for option, keys in (("--rows", row_keys), ("--columns", column_keys)):
        for key in keys or ():
            check_key(option, key, known)
    row_keys, column_keys = axes(settings, row_keys, column_keys)
    found = group_by_key(((_label(one, row_keys), _label(one, column_keys)), one) for one in settings)
    for (row, column), several in found.items():
        if len(several) > 1:
            raise _shared(row, column, several)
    columns = sorted({column for _, column in found}, key=_place)
    order = sorted({row for row, _ in found}, key=_place)
    cells = {key: Cell(one.row, measure.by_draw(one.row)) for key, (one,) in found.items()}
    if not by_name:
        order.sort(key=lambda row: _standing([cell for (of, _), cell in cells.items() if of == row], measure))
    placed = {(order.index(row), columns.index(column)): cell for (row, column), cell in cells.items()}
    made = Crossed(measure, tuple(order), tuple(columns), placed, tuple(dict.fromkeys(against)) or (BEST,))
    _ = made.comparisons  # checks the references
    return made


def axes(
    settings: Sequence[Settings], row_keys: Sequence[str] | None, column_keys: Sequence[str] | None
) -> tuple[Sequence[str], Sequence[str]]:
    """The keys of rows and columns; those that are None are what runs differ in beside the others."""
    differing = differing_keys(settings) if row_keys is None or column_keys is None else []
    if row_keys is None and column_keys is None:
        column_keys = [key for key in differing if of_setting(key)]
    if row_keys is None:
        row_keys = [key for key in differing if key not in (column_keys or ())]
    if column_keys is None:
        column_keys = [key for key in differing if key not in row_keys]
    return row_keys or ["method"], column_keys


def _label(one: Settings, keys: Sequence[str]) -> Label:
    return Label(tuple(keys), tuple(one.values.get(key) for key in keys))


def _place(label: Label) -> list[tuple[int, float, str]]:
    return [ordered(value) for value in label.values]


def _standing(cells: Sequence[Cell], measure: Column) -> tuple[int, float]:
    """The sort key of a row: first those with numbers in more columns, then the best mean of them."""
    means = [cell.number.mean for cell in cells if cell.number is not None]
    mean = compared(fmean(means)) if means and measure.higher is not None else 0.0
    return -len(means), -mean if measure.higher else mean


def _shared(row: Label, column: Label, several: Sequence[Settings]) -> UserError:
    keys = [key for key in differing_keys(several) if key not in (*row.keys, *column.keys)]
    place = " ".join([*row.parts, *column.parts])
    if not keys:
        return UserError(f"{place} is {len(several)} rows of runs, on other data: name the folders of one of them")
    key = keys[0]
    value = next(one.values[key] for one in several if key in one.values)
    return UserError(
        f"{place} has runs that differ in {', '.join(keys)}, too: add it to --rows or --columns, or choose, as in "
        f"--where {key}={value}"
    )
