"""A table with the values of runs beside the paper's: the input of rendering."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Literal

from flnl.console.ties import compared
from flnl.instruments.tables.table import NEVER, Column, Number, Table
from flnl.numerics import moments


@dataclass(frozen=True)
class Run:
    """One run behind a cell, finished or not."""

    seed: int
    folder: Path  # holds result.json, metrics.jsonl, figures/
    command: str  # the command line that reproduces it
    value: float | None  # in the metric's unit (accuracy in %), or NEVER; None: not finished, or metric not recorded
    state: Literal["finished", "failed", "absent"]
    log: Path | None  # the log of a failed run, if there is one
    error: str | None  # why the run failed, on one line; None if unknown
    early: str | None = None  # where its best evaluation lies, if that is before its method acts


@dataclass(frozen=True)
class Cell:
    """The paper's numbers and our runs."""

    papers: tuple[Number | None, ...]  # one per column of the paper that the rendered column merges, in their order
    runs: tuple[Run, ...]  # one per seed; empty if the cell cannot run
    state: Literal["run", "partly", "absent", "failed", "missing", "na"]
    note: str | None  # a footnote: why the cell is n/a, or what is missing
    over: Literal["mean", "lowest"] = "mean"  # what the cell shows of its seeds' values
    same_data: tuple[bool, ...] = ()  # whether ours have the data set of each of ``papers``; empty: all of them

    @property
    def values(self) -> tuple[float, ...]:
        """The values of the runs that have one, in the order of seeds."""
        return tuple(run.value for run in self.runs if run.value is not None)

    @property
    def number(self) -> float | None:
        """Mean over seeds, or the lowest value; None if no run has a value.

        NEVER if a run did not reach the target, for the lowest value if none did.
        """
        return self._over(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """Sample standard deviation (ddof=1) over seeds; None for the lowest, for one seed, and if one is NEVER."""
        return None if self.over == "lowest" or NEVER in self.values else moments.deviation(self.values)

    def _over(self, values: tuple[float, ...]) -> float:
        return fmean(values) if self.over == "mean" else min(values)

    @property
    def reached(self) -> tuple[float, ...]:
        """The values except NEVER."""
        return tuple(value for value in self.values if value != NEVER)

    @property
    def sort_key(self) -> tuple[int, float] | None:
        """The sort key of a cell within its column; None unless every seed has a value.

        It is the number of seeds that never reached the target, then the mean of those that did: a method that never
        reaches it ranks behind one that sometimes does. Of lowest values, only a cell that never reached it is behind.
        Means that differ by rounding alone are the same.
        """
        if not self.runs or len(self.values) < len(self.runs):
            return None
        if not self.reached:
            return len(self.values), 0.0
        behind = len(self.values) - len(self.reached) if self.over == "mean" else 0
        return behind, compared(self._over(self.reached))


@dataclass(frozen=True)
class Scale:
    """A description of a scale: what is changed so that tables fit a machine."""

    name: str  # "small"
    title: str
    changes: tuple[str, ...]  # sentences printed under every table at this scale
    seeds: tuple[int, ...]
    papers: bool = False  # whether the conditions are the paper's
    tuned: bool = False  # whether methods have values that were chosen for them

    @property
    def caption(self) -> str:
        """The end of a figure's caption."""
        return f" at scale “{self.name}”: {self.title}"


@dataclass(frozen=True)
class Filled:
    """A table at a scale."""

    table: Table
    scale: Scale
    columns: tuple[Column, ...]  # the rendered columns, after merging those that are the same at this scale
    of_paper: tuple[tuple[int, ...], ...]  # rendered column -> indices of the paper's columns that it merges
    cells: tuple[tuple[Cell, ...], ...]  # [row][rendered column]
    notes: tuple[str, ...]  # of this table at this scale
    noise: tuple[str, ...] = ()  # percent of wrong given labels in the runs of each rendered column; empty if unknown

    @property
    def runs(self) -> list[Run]:
        """The runs behind all cells, whether they have run or not; none if no cell can run."""
        return [run for row in self.cells for cell in row for run in cell.runs]
