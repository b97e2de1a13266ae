"""The text of a table, independent of the format: cells, footnotes, and the lines above and below the table."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

from flnl.console.words import counted
from flnl.core.grouping import group_by_key
from flnl.instruments.compare.runs import shown
from flnl.instruments.compare.table import MOST_DIGITS, decimals, written
from flnl.instruments.tables.results import Cell, Filled
from flnl.instruments.tables.table import NEVER, Number

DASH = "–"
PLACEHOLDERS = {"run": DASH, "partly": DASH, "absent": "not run", "failed": "failed", "missing": "missing", "na": "n/a"}
"""The text of a cell without a number, by its state; a dash if its runs have finished without one."""
NOISE = "wrong given labels, %"
"""The heading of the row that says how noisy the data were."""
MEANINGS = {
    "best": "the maximum over a run's evaluations, an oracle over the test set",
    "last": "at a run's last evaluation",
    "mean_last_10": "the mean of a run's last 10 evaluations",
}
"""Explanations of metrics, by their key in a run's record."""
NOT_REACHED = "not reached"
PERCENT_DIGITS = 2


@dataclass(frozen=True)
class Entry:
    """The texts of a cell."""

    ours: str  # "95.10 ± 0.30", or the placeholder of its state
    count: str  # "2 of 3 seeds" if some have no number yet, else empty
    paper: str  # "94.15 ± 0.18"; several if the column merges several of the paper's, in their order
    difference: str  # ours - paper, one for each; empty if there is none
    best: bool  # the best of ours in this column, among the rows whose seeds have all run
    mark: int | None  # the number of its footnote, from 1


@dataclass(frozen=True)
class Sheet:
    """All texts of a table."""

    filled: Filled

    # ------------------------------------------------------------------------------------------------------ the table

    @cached_property
    def entries(self) -> tuple[tuple[Entry, ...], ...]:
        """The cells as text: [row][rendered column]."""
        return tuple(
            tuple(self._entry(i, j) for j in range(len(self.filled.columns))) for i in range(len(self.filled.cells))
        )

    @property
    def headings(self) -> list[str]:
        """The headings of the rendered columns, with the unit."""
        unit = self.filled.table.metric.unit
        return [f"{column.label}, {unit}" if unit else column.label for column in self.filled.columns]

    @cached_property
    def compared(self) -> bool:
        """Whether the table has numbers of a paper, to stand below ours."""
        return any(self.printed_in(row) for row in range(len(self.filled.table.rows)))

    def printed_in(self, row: int) -> bool:
        """Whether the paper has numbers in a row; it has none of the user's own."""
        return any(number is not None for number in self.filled.table.cells[row])

    @property
    def noise(self) -> list[str]:
        """The share of wrong given labels in each rendered column, a dash where it is unknown; empty if all are."""
        return [text or DASH for text in self.filled.noise] if any(self.filled.noise) else []

    @cached_property
    def footnotes(self) -> list[str]:
        """The distinct footnotes, in the order of the cells."""
        notes = (footnote(cell) for row in self.filled.cells for cell in row)
        return list(dict.fromkeys(note for note in notes if note))

    def _entry(self, i: int, j: int) -> Entry:
        cell = self.filled.cells[i][j]
        note = footnote(cell)
        theirs = [None if one is None else text(one.mean, one.std, digits=self.printed) for one in cell.papers]
        apart = [None if one is None else self.number(one, sign="+") for one in differences(cell)]
        return Entry(
            ours=self._ours(cell),
            count=_count(cell),
            paper=_beside(theirs) or DASH,
            difference=_beside(apart),
            best=self._best(i, j),
            mark=self.footnotes.index(note) + 1 if note else None,
        )

    def _ours(self, cell: Cell) -> str:
        if cell.number is None:
            return PLACEHOLDERS[cell.state]
        if cell.number == NEVER and cell.reached:
            return f"{len(cell.reached)} of {len(cell.values)} reached"
        return self.number(cell.number, cell.std)

    def _best(self, i: int, j: int) -> bool:
        higher = self.filled.table.metric.higher_is_better
        cells = [self.filled.cells[k][j] for k in self._competing]
        every = [other for one in cells if (other := one.sort_key) is not None]
        sort_key = self.filled.cells[i][j].sort_key if i in self._competing else None
        if higher is None or sort_key is None or len(every) < 2 or sort_key[0] == len(self.filled.cells[i][j].runs):
            return False
        return sort_key == (max if higher else min)(every)

    @cached_property
    def _competing(self) -> list[int]:
        """The rows that are methods, not references in another setting; all rows if none is a method."""
        rows = self.filled.table.rows
        return [i for i, row in enumerate(rows) if row.method] or list(range(len(rows)))

    # -------------------------------------------------------------------------------------------------------- numbers

    def number(self, mean: float, std: float | None = None, *, sign: str = "-") -> str:
        """Format a number of ours with its deviation; ``sign="+"`` also marks positive numbers, for differences."""
        return text(mean, std, digits=self.digits, sign=sign)

    @cached_property
    def printed(self) -> int:
        """Decimals of the paper's numbers, at most as many as ours have."""
        numbers = [x for number in self._papers for x in (number.mean, number.std or 0)]
        return max((min(_decimals(x), self.digits) for x in numbers), default=0)

    @cached_property
    def digits(self) -> int:
        """Decimals of our numbers: 2 for percentages, else as many as ``decimals`` says."""
        if self.filled.table.metric.unit == "%":
            return PERCENT_DIGITS
        printed = [number.mean for number in self._papers]
        ours = [value for row in self.filled.cells for cell in row for value in cell.reached]
        return decimals([*printed, *ours])

    @property
    def _papers(self) -> list[Number]:
        """The numbers that the paper prints, without NEVER."""
        return [number for row in self.filled.table.cells for number in row if number and number.mean != NEVER]

    # ---------------------------------------------------------------------------------------------------------- lines

    @property
    def title(self) -> str:
        """The paper, the number of the table, and its title."""
        table = self.filled.table
        parts = [table.paper, f"Table {table.number}" if table.number else ""]
        return ": ".join(filter(None, (", ".join(filter(None, parts)), table.title)))

    @property
    def measured(self) -> str:
        """A sentence: the metric, its unit, its meaning, and which direction is better."""
        metric = self.filled.table.metric
        better = {True: "; higher is better", False: "; lower is better", None: ""}[metric.higher_is_better]
        one = all(column.key in (None, metric.key) for column in self.filled.columns)
        meaning = f" ({MEANINGS[metric.key]})" if one and metric.key in MEANINGS else ""
        sentence = f"{metric.name}{f', {metric.unit}' if metric.unit else ''}{meaning}{better}."
        return sentence[:1].upper() + sentence[1:]

    @property
    def seeds(self) -> str:
        """The number of our seeds, and of the paper's trials if the table has the paper's numbers, a sentence each."""
        seeds, trials = self.filled.scale.seeds, self.filled.table.trials
        over = "the lowest value" if self.filled.table.metric.over == "lowest" else "mean ± sample standard deviation"
        spread = over if len(seeds) > 1 else "so without a deviation"
        ours = f"Ours: {counted(len(seeds), 'seed')} ({', '.join(map(str, seeds))}) a cell, {spread}."
        if not self.compared:
            return ours
        return f"{ours} The paper: {counted(trials, 'trial') if trials else 'number of trials not given'}."

    @property
    def reading(self) -> str:
        """Sentences that explain differences, bold numbers and ranks."""
        metric, entries = self.filled.table.metric, list(chain(*self.entries))
        sentences = []
        if any(entry.difference for entry in entries):
            sentences.append(f"The difference is ours − the paper's{' in percentage points' * (metric.unit == '%')}.")
        if any(
            paper is not None and not same
            for cell in chain(*self.filled.cells)
            for paper, same in zip(cell.papers, cell.same_data, strict=False)  # none if all are the same
        ):
            sentences.append("Numbers of another data set than the paper's are not subtracted.")
        if metric.higher_is_better is not None:
            sentences.append("The best of ours in a column is bold.")
        if any(NOT_REACHED in text for entry in entries for text in (entry.ours, entry.paper)):
            sentences.append(f"What is {NOT_REACHED} ranks last.")
        return " ".join(sentences)

    @property
    def scale(self) -> str:
        """A sentence that states the scale, to be printed prominently."""
        scale = self.filled.scale
        other = ": these are not the paper's conditions" if self.filled.table.paper and not scale.papers else ""
        return f"Made at scale “{scale.name}” ({scale.title}){other}."

    @property
    def changes_title(self) -> str:
        """What a list of the scale's changes is called: a table of one's own has no paper that they differ from."""
        return "What differs from the paper" if self.filled.table.paper else "The scale"

    @property
    def merged(self) -> list[str]:
        """A note that lists the merged columns; empty list if there are none."""
        labels = [column.label for column in self.filled.table.columns]
        columns = [
            f"“{column.label}” is {' and '.join(f'“{labels[k]}”' for k in which)}"
            for column, which in zip(self.filled.columns, self.filled.of_paper, strict=True)
            if len(which) > 1
        ]
        head = "Columns of the paper that this scale cannot tell apart are one"
        order = "with the paper's numbers, and the differences from them, in this order"
        return [f"{head}, {order}: {'; '.join(columns)}."] if columns else []

    @property
    def partly(self) -> list[str]:
        """A note that counts the cells with missing seeds, which are not compared; empty list if there are none."""
        cells = [cell for row in self.filled.cells for cell in row]
        number = sum(cell.number is not None and cell.sort_key is None for cell in cells)
        head = "Cells that have run with some of the seeds alone are in no order, rank or bold"
        return [f"{head}: {number}."] if number else []

    @property
    def notes(self) -> list[str]:
        """All notes below the table."""
        return [*self.merged, *self.partly, *self.filled.notes, *self.filled.table.notes]


def pieces(sentence: str) -> list[tuple[str, bool]]:
    """The parts of a sentence in order, and whether each is code, which stands between backticks in the sentence.

    >>> pieces("Chosen by `flnl tune`.")
    [('Chosen by ', False), ('flnl tune', True), ('.', False)]
    """
    return [(part, i % 2 == 1) for i, part in enumerate(sentence.split("`")) if part]


def text(mean: float, std: float | None = None, *, digits: int, sign: str = "-") -> str:
    """Format as ``−1.50 ± 0.25``; ``sign="+"`` also marks positive numbers."""
    if mean == NEVER:
        return NOT_REACHED
    return written(mean, std, digits, sign)


def differences(cell: Cell) -> list[float | None]:
    """Ours - paper, for each of the paper's numbers; None if either is missing or NEVER, or of another data set."""
    ours, same = cell.number, cell.same_data or (True,) * len(cell.papers)
    return [
        None if not same_data or ours is None or paper is None or NEVER in (ours, paper.mean) else ours - paper.mean
        for paper, same_data in zip(cell.papers, same, strict=True)
    ]


def _decimals(x: float) -> int:
    """Number of decimals needed to write ``x``."""
    return len(f"{x:.{MOST_DIGITS}f}".rstrip("0").partition(".")[2])


def _count(cell: Cell) -> str:
    done, asked = len(cell.values), len(cell.runs)
    return f"{done} of {asked} seeds" if cell.number is not None and done < asked else ""


def _beside(numbers: Sequence[str | None]) -> str:
    """Join the numbers that share a cell, with a dash for each missing one; empty if all are missing."""
    return " / ".join(number or DASH for number in numbers) if any(numbers) else ""


def footnote(cell: Cell) -> str:
    """Why a cell has no number, or not from all seeds; empty if it is complete."""
    return "; ".join(_reasons(cell))


def _reasons(cell: Cell) -> Iterator[str]:
    if cell.note:
        yield cell.note
    several = len(cell.runs) > 1
    for run in cell.runs:
        if run.early:
            yield f"{f'seed {run.seed}: ' if several else ''}{run.early}"
    if cell.number == NEVER and cell.reached:
        reached = (run for run in cell.runs if run.value not in (None, NEVER))
        yield "reached " + ", ".join(f"at {run.value:g} by seed {run.seed}" for run in reached)
    for reason, runs in group_by_key((run.error, run) for run in cell.runs if run.state == "failed").items():
        seeds = f"seed{'' if len(runs) == 1 else 's'} {', '.join(str(run.seed) for run in runs)}"
        logs = [run.log or run.folder for run in runs if run.log or not reason]
        why = f" ({reason})" if reason else ""
        yield f"{seeds} failed{why}" + (f", see {', '.join(map(shown, logs))}" if logs else "")
