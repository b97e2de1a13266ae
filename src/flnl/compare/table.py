"""The numbers of rows over their seeds, and the table that they make: for terminals, text, Markdown, LaTeX and CSV."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean, stdev
from textwrap import wrap
from typing import TYPE_CHECKING

from flnl.compare.latex import escaped
from flnl.compare.names import names
from flnl.compare.runs import Row, Run, note
from flnl.core.terminal import visible
from flnl.storage.spreadsheet import csv_text

if TYPE_CHECKING:
    from rich.table import Table as RichTable

MISSING = "–"
MIB = 2**20
NAME, HEADING, GAP = 16, 9, 2
"""Characters on a terminal: of a name in a line at least, of a heading in a line at most, between columns."""


@dataclass(frozen=True)
class Number:
    """The mean over the runs that have the number, and the sample deviation (ddof=1) where there are two or more."""

    mean: float
    deviation: float | None

    @classmethod
    def of(cls, found: Sequence[float]) -> Number | None:
        """None of no number."""
        if not found:
            return None
        return cls(fmean(found), stdev(found) if len(found) > 1 else None)


@dataclass(frozen=True)
class Column:
    """A number of a run under a heading with its unit; ``key`` names it in options and CSV files."""

    key: str
    heading: str
    csv: str
    of: Callable[[Run], object]
    factor: float = 1.0
    accuracy: bool = False  # the larger, the better
    spread: bool = False  # shown with its deviation

    def numbers(self, row: Row) -> list[float]:
        """The number of every run that has a finite one, in the column's unit."""
        found = [self.of(run) for run in row.runs]
        return [self.factor * x for x in found if isinstance(x, int | float) and math.isfinite(x)]


def _metric(name: str) -> Callable[[Run], object]:
    return lambda run: run.metrics.get(name)


def _counted(name: str) -> Callable[[Run], object]:
    return lambda run: run.result.get(name)


def _accuracy(key: str, heading: str, csv: str) -> Column:
    return Column(key, f"{heading}, %", f"accuracy_{csv}_percent", _metric(csv), 100.0, accuracy=True, spread=True)


COLUMNS = (
    _accuracy("last", "last", "last"),
    _accuracy("best", "best", "best"),
    _accuracy("mean", "mean of last 10", "mean_last_10"),
    _accuracy("validation", "at best validation", "at_best_validation"),
    Column("wrong", "wrong at the end, %", "labels_wrong_at_end_percent", _metric("noise_final"), 100.0, spread=True),
    Column("rounds", "rounds", "rounds", _counted("rounds")),
    Column("participations", "participations", "participations", _counted("participations")),
    Column("communication", "communication, MiB", "communication_mib", _counted("bytes"), 1 / MIB),
    Column("time", "wall time, s", "wall_time_s", _counted("wall_time_s")),
)
OPTIONAL = ("validation",)
"""Left out where no run has it."""
SORTS = ("name", "seeds", *(column.key for column in COLUMNS))


@dataclass(frozen=True)
class Line:
    """A row with its name and the number of each column."""

    name: str
    row: Row
    numbers: dict[str, Number | None]

    @property
    def status(self) -> str:
        """The status of its runs, counted where they differ."""
        found = Counter(visible(run.status) for run in self.row.runs)
        return next(iter(found)) if len(found) == 1 else ", ".join(f"{n} {status}" for status, n in found.items())


@dataclass(frozen=True)
class Table:
    """Lines in order, and whether runs that are not finished are among them."""

    lines: Sequence[Line]
    with_status: bool = False

    @classmethod
    def of(cls, rows: Sequence[Row], sort: str = "mean", *, with_status: bool = False) -> Table:
        """The rows by ``sort``: accuracies and seeds from the largest, all else from the smallest, gaps last."""
        lines = []
        for name, row in zip(names(rows), rows, strict=True):
            found = {column.key: column.numbers(row) for column in COLUMNS}
            for column in COLUMNS:
                if 0 < len(found[column.key]) < len(row.runs):
                    counted = f"{len(found[column.key])} of {len(row.runs)}"
                    note(f"{name}: {column.heading} is of {counted} seeds; the others have none")
            lines.append(Line(visible(name), row, {key: Number.of(numbers) for key, numbers in found.items()}))
        return cls(sorted(lines, key=lambda line: (*_place(line, sort), line.name)), with_status)

    @cached_property
    def columns(self) -> list[Column]:
        """Those that are shown."""
        return [c for c in COLUMNS if c.key not in OPTIONAL or any(line.numbers[c.key] for line in self.lines)]

    def best(self, line: Line, column: Column) -> bool:
        """Whether no other row on the same data set has a larger mean accuracy."""
        rivals = [other.numbers[column.key] for other in self.lines if other.row.dataset == line.row.dataset]
        means = [number.mean for number in rivals if number is not None]
        own = line.numbers[column.key]
        return column.accuracy and own is not None and len(means) > 1 and own.mean == max(means)

    # -------------------------------------------------------------------------------------------------------- texts

    @property
    def headings(self) -> list[str]:
        """Of all columns, units included."""
        return ["run", "seeds", *(["status"] if self.with_status else []), *(c.heading for c in self.columns)]

    def cells(self) -> list[list[str]]:
        """Every line as text; numbers of a column align at their points if they are set to the right."""
        columns = [self._aligned(column) for column in self.columns]
        firsts = [[li.name, str(len(li.row.runs)), *([li.status] if self.with_status else [])] for li in self.lines]
        return [[*first, *(column[i] for column in columns)] for i, first in enumerate(firsts)]

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
        """Decimals of a cost: none of whole or of large numbers."""
        means = [number.mean for line in self.lines if (number := line.numbers[column.key])]
        return 0 if all(mean.is_integer() for mean in means) or max(means) >= 1000 else 1

    def text(self) -> str:
        """Aligned columns."""
        rows = [self.headings, *self.cells()]
        left = 3 if self.with_status else 1
        widths = [max(len(row[i]) for row in rows) for i in range(len(self.headings))]
        words = [
            [cell.ljust(width) if i < left and i != 1 else cell.rjust(width) for i, (cell, width) in enumerate(found)]
            for found in (zip(row, widths, strict=True) for row in rows)
        ]
        return "\n".join("  ".join(line).rstrip() for line in words) + "\n"

    def rich(self, columns: Sequence[Column], least: int) -> RichTable | None:
        """Some columns for a terminal that is ``least`` wide, the best accuracies bold; None where they do not fit.

        A name may be folded, a number may not.
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
            # set to the right by hand: rich would take the blanks that stand for a missing deviation
            table.add_column("\n".join(line.rjust(width) for line in heading), no_wrap=True, min_width=width)
            cells[:] = [cell.rjust(width) for cell in cells]
        if sum((column.min_width or 0) + GAP for column in table.columns) - GAP > least:
            return None
        for i, line in enumerate(self.lines):
            numbers = [
                Text(text[i], "bold" if self.best(line, column) else "")
                for text, column in zip(texts, columns, strict=True)
            ]
            first = [line.name, str(len(line.row.runs)), *([line.status] if self.with_status else [])]
            table.add_row(*map(Text, first), *numbers)
        return table

    def markdown(self) -> str:
        """A table of GitHub's Markdown, the best accuracies bold."""
        rules = ["---" if heading in ("run", "status") else "---:" for heading in self.headings]
        rows = [self.headings, rules]
        for line, cells in zip(self.lines, self.cells(), strict=True):
            texts = [f"`{cells[0]}`".replace("|", r"\|"), *(cell.strip() for cell in cells[1:])]
            rows.append(self._marked(line, texts, "**{}**"))
        return "".join(f"| {' | '.join(row)} |\n" for row in rows)

    def latex(self) -> str:
        """A ``tabular`` with booktabs' rules, the best accuracies bold."""
        kinds = "".join("l" if heading in ("run", "status") else "r" for heading in self.headings)
        rows = [" & ".join(map(escaped, self.headings)) + r" \\", r"\midrule"]
        for line, cells in zip(self.lines, self.cells(), strict=True):
            texts = [rf"\texttt{{{escaped(cells[0])}}}", *(escaped(cell.strip()) for cell in cells[1:])]
            rows.append(" & ".join(self._marked(line, texts, r"\textbf{{{}}}")) + r" \\")
        begin = ["% needs \\usepackage{booktabs}", rf"\begin{{tabular}}{{{kinds}}}", r"\toprule"]
        return "\n".join([*begin, *rows, r"\bottomrule", r"\end{tabular}"]) + "\n"

    def _marked(self, line: Line, texts: list[str], mark: str) -> list[str]:
        skipped = len(texts) - len(self.columns)
        numbers = zip(self.columns, texts[skipped:], strict=True)
        return texts[:skipped] + [mark.format(t) if self.best(line, column) else t for column, t in numbers]

    def csv(self) -> str:
        """Unrounded numbers, with the deviation in a column of its own; what is missing is empty."""
        heads = [[c.csv, f"{c.csv}_std"] if c.spread else [c.csv] for c in self.columns]
        rows: list[list[object]] = [
            ["run", "seeds", *(["status"] if self.with_status else []), *(h for head in heads for h in head)]
        ]
        for line in self.lines:
            values: list[float | None] = []
            for column in self.columns:
                number = line.numbers[column.key]
                values.append(None if number is None else number.mean)
                if column.spread:
                    values.append(None if number is None else number.deviation)
            first = [line.name, len(line.row.runs), *([line.status] if self.with_status else [])]
            rows.append([*first, *("" if value is None else f"{value:.10g}" for value in values)])
        return csv_text(rows)


def _place(line: Line, sort: str) -> tuple[bool, float]:
    if sort in ("name", "seeds"):
        return False, -len(line.row.runs) if sort == "seeds" else 0.0
    number = line.numbers[sort]
    accuracy = any(column.key == sort and column.accuracy for column in COLUMNS)
    return number is None, 0.0 if number is None else -number.mean if accuracy else number.mean
