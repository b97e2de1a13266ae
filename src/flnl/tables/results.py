"""A table with the numbers of runs beside the paper's: all that rendering takes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

from flnl.tables.table import NEVER, Column, Number, Table


@dataclass(frozen=True)
class Run:
    """One run behind a cell, finished or not."""

    seed: int
    folder: Path  # holds result.json, metrics.jsonl, figures/
    command: str  # the command line that makes it again
    value: float | None  # in the metric's unit (accuracy in %); None: none yet, or the run cannot say; or NEVER
    state: Literal["finished", "failed", "absent"]
    log: Path | None  # of a failed run, where it has written one
    error: str | None  # why a run failed, on one line; None where that is not known


@dataclass(frozen=True)
class Cell:
    """The paper's numbers and the runs that ours is made of."""

    papers: tuple[Number | None, ...]  # one for each of its columns that the rendered one stands for, in their order
    runs: tuple[Run, ...]  # one a seed; empty where it cannot run
    state: Literal["run", "partly", "absent", "failed", "missing", "na"]
    note: str | None  # for a footnote: why n/a, what is missing

    @property
    def values(self) -> tuple[float, ...]:
        """The numbers of the runs that have one, in the order of seeds."""
        return tuple(run.value for run in self.runs if run.value is not None)

    @property
    def mean(self) -> float | None:
        """Over seeds; None where no run has a number, NEVER where one did not reach its target."""
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample deviation (ddof=1) over seeds; None for fewer than two, or where one is NEVER."""
        return stdev(self.values) if len(self.values) > 1 and NEVER not in self.values else None

    @property
    def reached(self) -> tuple[float, ...]:
        """The numbers but those that are NEVER."""
        return tuple(value for value in self.values if value != NEVER)

    @property
    def standing(self) -> tuple[int, float] | None:
        """What the cells of a column are ordered by; None where not every seed has a number.

        How many seeds never reached the target, then the mean of those that did: a method that never does is behind
        one that sometimes does.
        """
        if not self.runs or len(self.values) < len(self.runs):
            return None
        return len(self.values) - len(self.reached), fmean(self.reached) if self.reached else 0.0


@dataclass(frozen=True)
class Scale:
    """What is changed so that tables fit a machine, in words."""

    name: str  # "small"
    title: str
    changes: tuple[str, ...]  # one sentence each, printed under every table made at this scale
    seeds: tuple[int, ...]
    papers: bool = False  # whether its conditions are the paper's own


@dataclass(frozen=True)
class Filled:
    """A table at a scale."""

    table: Table
    scale: Scale
    columns: tuple[Column, ...]  # as rendered, after columns that became one were merged
    of_paper: tuple[tuple[int, ...], ...]  # rendered column -> the paper's columns that it stands for
    cells: tuple[tuple[Cell, ...], ...]  # [row][rendered column]
    notes: tuple[str, ...]  # of this table at this scale
