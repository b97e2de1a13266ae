"""A crossed table as text, Markdown, LaTeX and CSV."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from textwrap import wrap

from flnl.console.markdown import grid, literal
from flnl.console.ties import exact
from flnl.instruments.compare import latex
from flnl.instruments.compare.crossed import BEST, Cell, Comparison, Crossed
from flnl.instruments.compare.latex import escaped
from flnl.instruments.compare.table import decimals, written
from flnl.storage.spreadsheet import csv_text

MISSING, MINUS = "–", "−"
GAP = 2
MANY = 40
"""More comparisons than these are not printed: they are in the files."""

Piece = tuple[str, bool]
"""A text, and whether it is bold."""


@dataclass(frozen=True)
class Printed:
    """The texts of a table."""

    table: Crossed

    @cached_property
    def digits(self) -> int:
        """Decimals: two of percentages, else as many as ``decimals`` says."""
        if self.table.measure.heading.endswith("%"):
            return 2
        return decimals(value for cell in self.table.cells.values() for value in cell.values.values())

    def _cell(self, i: int, j: int) -> str:
        """Mean and deviation, with the number of seeds where they are not those of most cells."""
        cell = self.table.cells.get((i, j))
        if cell is None or cell.number is None:
            return MISSING
        count = "" if frozenset(cell.values) == self.table.usual else f" (n={len(cell.values)})"
        return written(cell.number.mean, cell.number.deviation, self.digits) + count

    @property
    def _corner(self) -> str:
        return ", ".join(self.table.rows[0].keys)

    # --------------------------------------------------------------------------------------------------------- text

    def text(self, width: int, *, bold: bool) -> Iterator[list[Piece]]:
        """Lines of at most ``width`` characters if a column fits: columns that do not fit follow below, notes last.

        Args:
            width: of the terminal.
            bold: whether the best is bold; else it has a star.
        """
        names = [self._corner, *self.table.names]
        stub = max(map(len, names))
        columns = [self._column(j, bold) for j in range(len(self.table.columns))]
        height = max(len(head) for head, _ in columns)
        while columns:
            fitting, used = 0, stub
            while fitting < len(columns) and (not fitting or used + GAP + _width(columns[fitting]) <= width):
                used += GAP + _width(columns[fitting])
                fitting += 1
            shown, columns = columns[:fitting], columns[fitting:]
            for k in range(height):
                cells = [([""] * (height - len(head)) + head)[k].rjust(_width((head, body))) for head, body in shown]
                name = self._corner if k == height - 1 else ""
                yield [(f"{name:{stub}}{''.join(' ' * GAP + cell for cell in cells)}".rstrip(), False)]
            for i, name in enumerate(self.table.names):
                line = [(f"{name:{stub}}", False)]
                for column in shown:
                    cell, best = column[1][i]
                    line += [(" " * (GAP + _width(column) - len(cell)), False), (cell, best)]
                yield line
            yield [("", False)]
        for note in self._notes(bold):
            yield from ([(line, False)] for line in wrap(note, width))
        if tests := self._tests():
            yield [("", False)]
            few = len(tests) <= MANY
            yield from ([(test, False)] for test in (tests if few else [f"Tests, {len(tests)} lines: by --markdown."]))

    def _column(self, j: int, bold: bool) -> tuple[list[str], list[Piece]]:
        """Heading and cells of equal width, so that marks stand below each other."""
        best = self.table.best(j)
        texts = [self._cell(i, j) for i in range(len(self.table.rows))]
        marks = [("*" if i in best and not bold else "") + self.table.marks(i, j) for i in range(len(texts))]
        longest = max(map(len, marks))
        body = [
            (f"{text} {mark:{longest}}" if longest else text, bold and i in best)
            for i, (text, mark) in enumerate(zip(texts, marks, strict=True))
        ]
        return list(self.table.columns[j].parts) or [self.table.measure.heading], body

    def _notes(self, bold: bool) -> list[str]:
        """The notes, with the word for how the best is marked."""
        if bold:
            return self.table.notes
        return [note.replace("Bold:", "*:", 1).replace("none is bold", "none has a *") for note in self.table.notes]

    def _tests(self) -> list[str]:
        """The comparisons as text, those of a column below its heading."""
        rows = [["difference", "±", "pairs", "p, t test", "p, signed rank"]]
        names: list[str] = [self._corrected]
        for j, several in groupby(self.table.comparisons, key=lambda one: one.column):
            names.append(f"{self.table.heading(j)}:")
            rows.append([""] * 5)
            for one in several:
                names.append(f"  {self._versus(one)}")
                rows.append(self._compared(one))
        if len(names) == 1:
            return []
        widths = [max(len(row[k]) for row in rows) for k in range(5)]
        stub = max(map(len, names))
        lines = [
            f"{name:{stub}}" + "".join(f"{'':{GAP}}{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
            for name, row in zip(names, rows, strict=True)
        ]
        return [line.rstrip() for line in lines]

    @property
    def _corrected(self) -> str:
        return f"paired{', Holm' if len(self.table.comparisons) > 1 else ''}"

    def _versus(self, one: Comparison) -> str:
        names = [row.name for row in self.table.rows]
        return f"{names[one.row]} {MINUS} {names[one.reference]}{' (best)' if one.against == BEST else ''}"

    def _compared(self, one: Comparison) -> list[str]:
        paired = one.paired
        return [
            MISSING if paired.mean is None else written(paired.mean, None, self.digits, "+"),
            MISSING if paired.deviation is None else f"{paired.deviation:.{self.digits}f}",
            str(len(paired.differences)),
            _p(one.t),
            _p(one.wilcoxon),
        ]

    # -------------------------------------------------------------------------------------------------------- files

    def markdown(self) -> str:
        """The table, its notes and its tests as GitHub-flavoured Markdown."""
        columns = range(len(self.table.columns))
        rows = [
            [literal(name), *(self._marked(i, j, "**{}**", "<sup>{}</sup>") for j in columns)]
            for i, name in enumerate(self.table.names)
        ]
        heading = [self._corner, *(literal(self.table.heading(j)) for j in columns)]
        parts = [grid(heading, rows), "\n".join(f"- {note}" for note in self.table.notes)]
        if tests := self.table.comparisons:
            heading = ["column", self._corrected, "difference", "deviation", "pairs", "p, t test", "p, signed rank"]
            lines = [
                [literal(self.table.heading(one.column)), literal(self._versus(one)), *self._compared(one)]
                for one in tests
            ]
            parts.append(grid(heading, lines, "llrrrrr"))
        return "\n\n".join(parts) + "\n"

    def _marked(self, i: int, j: int, bold: str, raised: str, *, escape: bool = False) -> str:
        text = escaped(self._cell(i, j)) if escape else self._cell(i, j)
        marks = self.table.marks(i, j)
        return (bold.format(text) if i in self.table.best(j) else text) + (raised.format(marks) if marks else "")

    def latex(self) -> str:
        """The table with booktabs' rules and its notes below; a key that columns share stands over them."""
        columns = range(len(self.table.columns))
        marks = (r"\textbf{{{}}}", r"\textsuperscript{{{}}}")
        rows = [
            latex.row([escaped(name), *(self._marked(i, j, *marks, escape=True) for j in columns)])
            for i, name in enumerate(self.table.names)
        ]
        data = " and ".join(sorted({cell.row.dataset for cell in self.table.cells.values()}))
        heading = self.table.measure.heading
        what = f"Test accuracy ({heading})" if self.table.measure.accuracy else heading
        return latex.table(
            escaped(f"{what} on {data}."),
            "comparison",
            f"l{'r' * len(columns)}",
            list(self._head()),
            rows,
            [escaped(note) for note in self.table.notes],
        )

    def _head(self) -> Iterator[str]:
        """A line for each key of the columns; adjacent columns that agree so far share a heading."""
        parts = [column.parts or (self.table.measure.heading,) for column in self.table.columns]
        depth = len(parts[0])
        for level in range(depth):
            groups = [(key[-1], len(list(of))) for key, of in groupby(part[: level + 1] for part in parts)]
            last = level == depth - 1
            cells = [
                rf"\multicolumn{{{n}}}{{c}}{{{escaped(text)}}}" if n > 1 or not last else escaped(text)
                for text, n in groups
            ]
            yield latex.row([escaped(self._corner) if last else "", *cells])
            if not last:
                ends = [1 + sum(n for _, n in groups[: k + 1]) for k in range(len(groups))]
                yield "".join(
                    rf"\cmidrule(lr){{{end - n + 1}-{end}}}" for end, (_, n) in zip(ends, groups, strict=True)
                )

    def csv(self) -> str:
        """A line for each cell and reference: unrounded numbers, p-values as they are and with Holm's correction."""
        fields = ["row", "column", "measure", "mean", "std", "n", "seeds", "best", "against", "difference"]
        rows: list[list[object]] = [
            [*fields, "difference_std", "pairs", "p_t", "p_t_holm", "p_wilcoxon", "p_wilcoxon_holm"]
        ]
        for (i, j), cell in sorted(self.table.cells.items()):
            first = self._numbers(i, j, cell)
            tests = [one for one in self.table.comparisons if (one.row, one.column) == (i, j)]
            rows += [[*first, *self._tested(one)] for one in tests] or [[*first, *([""] * 8)]]
        return csv_text(rows)

    def _numbers(self, i: int, j: int, cell: Cell) -> list[object]:
        mean, deviation = (None, None) if cell.number is None else (cell.number.mean, cell.number.deviation)
        seeds = " ".join(str(seed) for seed, _ in sorted(cell.values))
        best = int(i in self.table.best(j))
        heading, measure = self.table.columns[j].heading, self.table.measure.csv
        return [self.table.names[i], heading, measure, exact(mean), exact(deviation), len(cell.values), seeds, best]

    def _tested(self, one: Comparison) -> list[object]:
        paired = one.paired
        numbers = [paired.mean, paired.deviation]
        against = self.table.rows[one.reference].name
        p = [paired.t, one.t, paired.wilcoxon, one.wilcoxon]
        return [against, *map(exact, numbers), len(paired.differences), *map(exact, p)]


def _width(column: tuple[Sequence[str], Sequence[Piece]]) -> int:
    return max(len(text) for text in (*column[0], *(cell for cell, _ in column[1])))


def _p(p: float | None) -> str:
    if p is None:
        return MISSING
    return "<0.001" if p < 0.001 else f"{p:.3f}"
