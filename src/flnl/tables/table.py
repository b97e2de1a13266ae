"""A table as a paper prints it: rows and columns as overrides, what it measures, and the printed numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

NEVER = math.inf
"""What it takes to reach a target that is never reached."""


@dataclass(frozen=True)
class Number:
    """What a paper prints in a cell, in the unit of the table's metric."""

    mean: float  # NEVER where the paper says so of a target
    std: float | None  # None: none printed

    @property
    def standing(self) -> tuple[int, float]:
        """As that of our cells, which ``flnl.tables.results`` describes."""
        return (1, 0.0) if self.mean == NEVER else (0, self.mean)


@dataclass(frozen=True)
class Row:
    """A row: mostly a method, sometimes a variant of one, or a method on its own data set or model."""

    label: str  # "FedCorr", or "FedCorr (centralized)"
    method: str  # the paper's name of the method, the unit of rankings; "" where a row is none
    overrides: tuple[str, ...]  # Hydra words
    missing: str | None  # what does not exist yet ("RoFL"); None where the row can run
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (word of a column, what the row says further in it)


@dataclass(frozen=True)
class Column:
    """A column: a setting that all rows are run in."""

    label: str  # "ρ=0.6 τ=0.5"
    overrides: tuple[str, ...]  # Hydra words
    key: str | None = None  # what it measures, where that is not the table's metric but another in its unit
    missing: str | None = None  # why nothing can be measured here


@dataclass(frozen=True)
class Metric:
    """What the cells of a table say."""

    name: str  # "best test accuracy"
    unit: str  # "%"; "" for what has none
    higher_is_better: bool | None  # None: not ranked
    key: str  # where it is among the metrics of a run


@dataclass(frozen=True)
class Table:
    """A table with the numbers that the paper prints."""

    name: str  # "fedcorr_2", as its file conf/table/fedcorr_2.yaml
    paper: str  # "FedCorr"; "" for a table of one's own
    number: str  # "2"
    title: str
    metric: Metric
    trials: int | None  # seeds of the paper; None where it does not say
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    cells: tuple[tuple[Number | None, ...], ...]  # [row][column]; None: nothing printed
    notes: tuple[str, ...]
    unstated: tuple[str, ...] = ()  # settings, by dotted key, on which the paper is silent
