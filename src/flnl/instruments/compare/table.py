"""The table of rows with metrics over seeds, rendered for terminals and as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from operator import attrgetter
from textwrap import wrap
from typing import TYPE_CHECKING

from flnl.console.markdown import grid
from flnl.console.suggestions import instead
from flnl.console.terminal import visible
from flnl.console.ties import compared, exact
from flnl.core.errors import UserError
from flnl.core.numbers import is_number
from flnl.instruments.compare import latex
from flnl.instruments.compare.latex import escaped
from flnl.instruments.compare.names import Settings, differing_keys, names, override
from flnl.instruments.compare.runs import Draw, Row, draw, given_to, note, of_setting
from flnl.numerics import moments
from flnl.record.run import RunRecord
from flnl.storage.spreadsheet import csv_text

if TYPE_CHECKING:
    from rich.table import Table as RichTable

MISSING = "–"
NOTE = (
    "Mean ± sample standard deviation (n − 1) over seeds. Bold: the best accuracies of rows on the same data, "
    "partition and noise with equal seeds."
)
NAME, HEADING, GAP = 16, 9, 2
"""Characters on a terminal: minimum width of a name, maximum width of a heading's line, gap between columns."""


@dataclass(frozen=True)
class Number:
    """The mean over the runs that have a value, and the sample standard deviation (ddof=1) if there are several."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, values: Sequence[float]) -> Number | None:
        """Summarise values; None if there are none."""
        mean = moments.mean(values)
        return None if mean is None else cls(mean, moments.deviation(values))


MOST_DIGITS = 6


def written(mean: float, deviation: float | None, digits: int, sign: str = "-") -> str:
    """As in ``−1.50 ± 0.25``; ``sign="+"`` also marks positive numbers."""
    number = f"{mean:{sign}.{digits}f}".replace("-", "−")
    return number if deviation is None else f"{number} ± {deviation:.{digits}f}"


def decimals(numbers: Iterable[float]) -> int:
    """Decimals of numbers in a table: none of counts, else enough for three digits of a typical one; 6 at most."""
    sizes = sorted(abs(number) for number in numbers if number)
    if all(float(size).is_integer() for size in sizes):
        return 0
    return min(MOST_DIGITS, max(0, 2 - math.floor(math.log10(sizes[len(sizes) // 2]))))


@dataclass(frozen=True)
class Column:
    """A metric of runs: heading with unit, ``key`` for ``--sort``, and ``csv`` for the column of CSV files."""

    key: str
    heading: str
    csv: str
    of: Callable[[RunRecord], object]
    factor: float = 1.0
    accuracy: bool = False  # larger is better
    spread: bool = False  # shown with its deviation

    def value(self, run: RunRecord) -> float | None:
        """A run's finite value, in the column's unit; None if it has none."""
        x = self.of(run)
        return self.factor * x if is_number(x) and math.isfinite(x) else None

    def by_draw(self, row: Row) -> dict[Draw, float]:
        """The finite values of the row's runs, in the column's unit."""
        return {draw(run): x for run in row.runs if (x := self.value(run)) is not None}

    def numbers(self, row: Row) -> list[float]:
        """The finite values of the row's runs, in the column's unit."""
        return list(self.by_draw(row).values())

    @property
    def higher(self) -> bool | None:
        """Whether the best is the highest: of accuracies; of other columns of the table the lowest; else unknown."""
        return True if self.accuracy else False if self in ALL else None


def _metric(name: str) -> Callable[[RunRecord], object]:
    return lambda run: run.metrics.get(name)


def _accuracy(key: str, heading: str, csv: str) -> Column:
    return Column(key, f"{heading}, %", f"accuracy_{csv}_percent", _metric(csv), 100.0, accuracy=True, spread=True)


MIB = 2**20
COSTS = {
    recorded: Column(key, heading, csv, attrgetter(recorded), factor)
    for recorded, key, heading, csv, factor in (
        ("participations", "participations", "participations", "participations", 1.0),
        ("training_passes", "passes", "training passes", "training_passes", 1.0),
        ("forward_passes", "forward", "forward passes", "forward_passes", 1.0),
        ("optimizer_steps", "steps", "optimiser steps", "optimizer_steps", 1.0),
        ("bytes", "communication", "communication, MiB", "communication_mib", 1 / MIB),
        ("wall_time_s", "time", "wall time, s", "wall_time_s", 1.0),
        ("cpu_time_s", "cpu", "CPU time, s", "cpu_time_s", 1.0),
        ("peak_memory", "memory", "peak memory, MiB", "peak_memory_mib", 1 / MIB),
        ("peak_gpu_memory", "gpu_memory", "peak GPU memory, MiB", "peak_gpu_memory_mib", 1 / MIB),
    )
}
"""What a run costs, by the key in ``result.json``; docs/running.md says what each number means."""
COLUMNS = (
    _accuracy("last", "last", "last"),
    _accuracy("best", "best", "best"),
    _accuracy("mean", "mean of last 10", "mean_last_10"),
    _accuracy("validation", "at best validation", "at_best_validation"),
    Column("wrong", "wrong at the end, %", "labels_wrong_at_end_percent", _metric("noise_final"), 100.0, spread=True),
    Column("rounds", "rounds", "rounds", lambda run: run.rounds),
    *(COSTS[recorded] for recorded in ("participations", "bytes", "wall_time_s")),
)
OF_COST = (COLUMNS[0], *COSTS.values())
"""The columns that stand in their place with ``--cost``."""
ALL = tuple({column.key: column for column in (*COLUMNS, *OF_COST)}.values())
OPTIONAL = ("validation", "gpu_memory")
"""Columns that are omitted if no run has the metric."""
RECORDED = {
    "mean_last_10": "mean",
    "at_best_validation": "validation",
    "noise_final": "wrong",
    **{recorded: cost.key for recorded, cost in COSTS.items()},
}
"""The columns of numbers that a record names otherwise."""
SORTS = ("name", "seeds", *(column.key for column in ALL))


def measured(name: str, rows: Sequence[Row]) -> Column:
    """The column of a number of runs: one of the table's, or any closing metric, as in ``result.json``.

    Raises:
        UserError: if no run has it.
    """
    key = RECORDED.get(name, name)
    column = next((one for one in ALL if one.key == key), Column(name, name, name, _metric(name), spread=True))
    if not any(column.numbers(row) for row in rows):
        metrics = (metric for row in rows for run in row.runs for metric in run.metrics.items())
        there = {metric for metric, x in metrics if is_number(x)} | {one.key for one in ALL}
        raise UserError(f"--measure {name}: no run has such a number; {instead(name, sorted(there))}")
    return column


@dataclass(frozen=True)
class Line:
    """A row with its name and its number in each column."""

    name: str
    row: Row
    numbers: dict[str, Number | None]

    @property
    def status(self) -> str:
        """The status of its runs, with counts if they differ."""
        counts = Counter(visible(run.status) for run in self.row.runs)
        return next(iter(counts)) if len(counts) == 1 else ", ".join(f"{n} {status}" for status, n in counts.items())


@dataclass(frozen=True)
class Table:
    """Sorted lines; ``with_status`` adds a column for the status of runs, ``cost`` shows what they cost instead."""

    lines: Sequence[Line]
    with_status: bool = False
    cost: bool = False

    @classmethod
    def of(cls, rows: Sequence[Row], sort: str = "mean", *, with_status: bool = False, cost: bool = False) -> Table:
        """Sort rows by the column ``sort``: accuracies and seeds descending, others ascending, missing values last."""
        lines = []
        for name, row in zip(names(rows), rows, strict=True):
            name += given_to(row.runs)
            values = {column.key: column.numbers(row) for column in ALL}
            for column in OF_COST if cost else COLUMNS:
                if 0 < len(values[column.key]) < len(row.runs):
                    counted = f"{len(values[column.key])} of {len(row.runs)}"
                    note(f"{name}: {column.heading} is of {counted} seeds; the others have none")
            lines.append(Line(visible(name), row, {key: Number.of(numbers) for key, numbers in values.items()}))
        return cls(sorted(lines, key=lambda line: (*_place(line, sort), line.name)), with_status, cost)

    @cached_property
    def columns(self) -> list[Column]:
        """The columns that are shown."""
        asked = OF_COST if self.cost else COLUMNS
        return [c for c in asked if c.key not in OPTIONAL or any(line.numbers[c.key] for line in self.lines)]

    def best(self, line: Line, column: Column) -> bool:
        """Whether no other row of the same setting, that is data, partition and noise, has a larger mean accuracy.

        Of rows with unequal seeds none is the best.
        """
        rivals = [other for other in self.lines if other.row.setting == line.row.setting and other.numbers[column.key]]
        means = [compared(number.mean) for rival in rivals if (number := rival.numbers[column.key]) is not None]
        seeds = {frozenset(column.by_draw(rival.row)) for rival in rivals}
        number = line.numbers[column.key]
        if not column.accuracy or number is None or len(means) < 2 or len(seeds) > 1:
            return False
        return compared(number.mean) == max(means)

    @cached_property
    def unequal(self) -> bool:
        """Whether rows of one setting have unequal seeds."""
        return any(
            one.row.setting == other.row.setting and one.row.draws != other.row.draws
            for one, other in combinations(self.lines, 2)
        )

    def panels(self) -> list[tuple[str, str]]:
        """Of each line, the keys of its setting in which lines differ, and its other keys."""
        settings = [Settings(line.row) for line in self.lines]
        keys = [key for key in differing_keys(settings) if of_setting(key)]
        titles = [" ".join(override(k, one.values[k]) for k in keys if k in one.values) for one in settings]
        texts = [
            " ".join(word for word in line.name.split(" ") if not of_setting(word.partition("=")[0]))
            for line in self.lines
        ]
        texts = [text or f"method={one.values['method']}" for text, one in zip(texts, settings, strict=True)]
        found = [(visible(title), visible(text)) for title, text in zip(titles, texts, strict=True)]
        unique = len(set(found)) == len(found)
        return found if unique else [(title, line.name) for (title, _), line in zip(found, self.lines, strict=True)]

    # -------------------------------------------------------------------------------------------------------- texts

    @property
    def headings(self) -> list[str]:
        """The headings of all columns, with units."""
        return ["run", "seeds", *(["status"] if self.with_status else []), *(c.heading for c in self.columns)]

    def cells(self) -> list[list[str]]:
        """The texts of every line; the numbers of a column align at the decimal point if right-aligned."""
        columns = [self._aligned(column) for column in self.columns]
        return [[*self._first(line), *(column[i] for column in columns)] for i, line in enumerate(self.lines)]

    def _first(self, line: Line) -> list[str]:
        return [line.name, str(len(line.row.runs)), *([line.status] if self.with_status else [])]

    def _aligned(self, column: Column) -> list[str]:
        parts = [self._parts(line, column) for line in self.lines]
        width = max((len(deviation) for _, deviation in parts), default=0)
        return [mean + deviation.ljust(width) for mean, deviation in parts]

    def _parts(self, line: Line, column: Column) -> tuple[str, str]:
        number = line.numbers[column.key]
        if number is None:
            return MISSING, ""
        digits = 2 if column.spread else self._digits(column)
        spread = column.spread and number.deviation is not None
        return f"{number.mean:.{digits}f}", f" ± {number.deviation:.{digits}f}" if spread else ""

    def _digits(self, column: Column) -> int:
        """Decimals of a cost: 0 for whole or large numbers, else 1."""
        means = [number.mean for line in self.lines if (number := line.numbers[column.key])]
        return 0 if all(mean.is_integer() for mean in means) or max(means) >= 1000 else 1

    def text(self) -> str:
        """The table as plain text with aligned columns."""
        rows = [self.headings, *self.cells()]
        left = 3 if self.with_status else 1
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.headings))]
        padded = [
            [cell.ljust(width) if i < left and i != 1 else cell.rjust(width) for i, (cell, width) in enumerate(cells)]
            for cells in (zip(row, widths, strict=True) for row in rows)
        ]
        return "\n".join("  ".join(line).rstrip() for line in padded) + "\n"

    def rich(self, columns: Sequence[Column], least: int) -> RichTable | None:
        """Render ``columns`` for a terminal of width ``least``, the best accuracies bold; None if they do not fit.

        Names may be wrapped, numbers are not.
        """
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(box=None, pad_edge=False, padding=(0, GAP, 0, 0))
        texts = [self._aligned(column) for column in columns]
        names = [line.name for line in self.lines]
        table.add_column("run", overflow="fold", min_width=min(NAME, max(map(len, names))))
        table.add_column("seeds", justify="right", min_width=len("seeds"))
        if self.with_status:
            table.add_column("status", overflow="fold", min_width=len("interrupted"))
        for column, cells in zip(columns, texts, strict=True):
            name, _, unit = column.heading.partition(", ")
            heading = [*wrap(name, HEADING, break_long_words=False), *([unit] if unit else [])]
            width = max(map(len, [*heading, *cells]))
            # right-aligned by hand: rich would strip the blanks that replace a missing deviation
            table.add_column("\n".join(line.rjust(width) for line in heading), no_wrap=True, min_width=width)
            cells[:] = [cell.rjust(width) for cell in cells]
        if sum((column.min_width or 0) + GAP for column in table.columns) - GAP > least:
            return None
        for i, line in enumerate(self.lines):
            numbers = [
                Text(text[i], "bold" if self.best(line, column) else "")
                for text, column in zip(texts, columns, strict=True)
            ]
            table.add_row(*map(Text, self._first(line)), *numbers)
        return table

    @property
    def _kinds(self) -> str:
        """How columns are aligned, as in LaTeX."""
        return "".join("l" if heading in ("run", "status") else "r" for heading in self.headings)

    def markdown(self) -> str:
        """The table as GitHub-flavoured Markdown, the best accuracies bold."""
        rows = []
        for line, cells in zip(self.lines, self.cells(), strict=True):
            texts = [f"`{cells[0]}`".replace("|", r"\|"), *(cell.strip() for cell in cells[1:])]
            rows.append(self._marked(line, texts, "**{}**"))
        return grid(self.headings, rows, self._kinds) + "\n"

    def latex(self) -> str:
        """The table with booktabs' rules and a note below, the best accuracies bold."""
        rows = []
        for line, cells in zip(self.lines, self.cells(), strict=True):
            texts = [rf"\texttt{{{escaped(cells[0])}}}", *(escaped(cell.strip()) for cell in cells[1:])]
            rows.append(latex.row(self._marked(line, texts, r"\textbf{{{}}}")))
        data = " and ".join(sorted({line.row.dataset for line in self.lines}))
        head = [latex.row([escaped(heading) for heading in self.headings])]
        return latex.table(escaped(f"Runs on {data}."), "comparison", self._kinds, head, rows, [escaped(NOTE)])

    def _marked(self, line: Line, texts: list[str], mark: str) -> list[str]:
        skipped = len(texts) - len(self.columns)
        numbers = zip(self.columns, texts[skipped:], strict=True)
        return texts[:skipped] + [mark.format(t) if self.best(line, column) else t for column, t in numbers]

    def csv(self) -> str:
        """The table as CSV: unrounded numbers, deviations in separate columns, missing values empty."""
        rows = [["run", "seeds", *(["status"] if self.with_status else [])]]
        for column in self.columns:
            rows[0] += [column.csv, f"{column.csv}_std"] if column.spread else [column.csv]
        for line in self.lines:
            values: list[float | None] = []
            for column in self.columns:
                number = line.numbers[column.key]
                both = (None, None) if number is None else (number.mean, number.deviation)
                values += both if column.spread else both[:1]
            rows.append([*self._first(line), *map(exact, values)])
        return csv_text(rows)


def _place(line: Line, sort: str) -> tuple[bool, float]:
    if sort in ("name", "seeds"):
        return False, -len(line.row.runs) if sort == "seeds" else 0.0
    number = line.numbers[sort]
    accuracy = any(column.key == sort and column.accuracy for column in ALL)
    return number is None, 0.0 if number is None else -compared(number.mean) if accuracy else number.mean
