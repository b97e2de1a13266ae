"""A table of a paper: rows and columns as overrides, the metric, and the printed numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass as checked

NEVER = math.inf
"""The cost of reaching a target that is never reached."""
STRICT = ConfigDict(extra="forbid")
"""Of what a file describes: it has no other keys."""


@dataclass(frozen=True)
class Number:
    """The number that a paper prints in a cell, in the unit of the table's metric."""

    mean: float  # NEVER if the paper reports that a target was not reached
    std: float | None  # None: not printed

    @property
    def sort_key(self) -> tuple[int, float]:
        """The sort key, as ``flnl.instruments.tables.results.Cell.sort_key``."""
        return (1, 0.0) if self.mean == NEVER else (0, self.mean)


@dataclass(frozen=True)
class Row:
    """A row: usually a method; sometimes a variant of one, or a method with another data set or model."""

    label: str  # "FedCorr", or "FedCorr (centralized)"
    method: str  # the paper's name of the method, the unit of rankings; "" if the row is not a method
    overrides: tuple[str, ...]  # Hydra overrides
    missing: str | None  # what is not implemented yet ("RoFL"); None if the row can run
    where: tuple[tuple[str, tuple[str, ...]], ...] = ()  # (overrides of a column, the row's additional ones there)
    own: bool = False  # added by the user: what it says holds at every scale, whatever was tuned


@checked(frozen=True, config=STRICT)
class Column:
    """A column: a setting in which all rows are run."""

    label: str  # "ρ=0.6 τ=0.5"
    overrides: tuple[str, ...] = ()  # Hydra overrides
    key: str | None = None  # the metric of this column, if not the table's; of the same unit
    missing: str | None = None  # why nothing can be measured here


@checked(frozen=True, config=STRICT)
class Metric:
    """What the cells of a table measure."""

    name: str  # "best test accuracy"
    key: str  # its key among the metrics of a run
    unit: str = ""  # "%"; "" without a unit
    higher_is_better: bool | None = None  # None: not ranked
    over: Literal["mean", "lowest"] = "mean"  # what a cell shows of its seeds' values


@dataclass(frozen=True)
class Table:
    """A table with the numbers that the paper prints."""

    name: str  # "fedcorr_2", the stem of conf/table/fedcorr_2.yaml
    paper: str  # "FedCorr"; "" for a user-defined table
    number: str  # "2"; "" if it is none of the paper's tables
    title: str
    metric: Metric
    trials: int | None  # number of the paper's seeds; None if not stated
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    cells: tuple[tuple[Number | None, ...], ...]  # [row][column]; None: nothing printed
    notes: tuple[str, ...]
    unstated: tuple[str, ...] = ()  # dotted keys of settings that the paper does not state
    scales: tuple[str, ...] = ()  # those that it is written for, with their data and budgets; () for all
    seeds: tuple[int, ...] | None = None  # in place of the scale's
    ablation: bool = False  # its rows are parts of a method: their order is not one of methods
    no_effect: Mapping[str, str] = field(default_factory=dict)  # metric -> what its 0 says of rows with equal runs
    by_name: bool = False  # made only where it is named, as one whose printed numbers are not known

    @property
    def place(self) -> str:
        """Where it is in its paper: "Table 2", or its title."""
        return f"Table {self.number}" if self.number else self.title

    def made_at(self, scale: str) -> bool:
        """Whether the table has results at ``scale``."""
        return not self.scales or scale in self.scales
