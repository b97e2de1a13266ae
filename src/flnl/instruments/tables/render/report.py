"""All tables on one self-contained page: our numbers beside the papers', curves, figures, runs and commands."""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from markupsafe import Markup

from flnl.console.templates import template
from flnl.console.words import counted
from flnl.core.grouping import group_by_key
from flnl.figures.curves import Curve
from flnl.figures.drawing import FIGURES
from flnl.figures.style import DASHES, EIGHT, look
from flnl.instruments.compare import diagram
from flnl.instruments.compare.runs import shown
from flnl.instruments.tables.render import agreement, drawings, ranking
from flnl.instruments.tables.render.agreement import Agreement
from flnl.instruments.tables.render.evidence import COST_HEADING, Costs, Evidence
from flnl.instruments.tables.render.ranking import Ranking
from flnl.instruments.tables.render.sheet import NOISE, PLACEHOLDERS, Sheet, pieces
from flnl.instruments.tables.results import Cell, Filled, Run

log = logging.getLogger(__name__)

UNPUBLISHED = "Other tables"
STATES = {
    "run": "run",
    "partly": "run with some of the seeds",
    "absent": "not run yet",
    "failed": "failed",
    "missing": "cannot be run",
    "na": "not at this scale",
}
HEADROOM = 3.0
"""Margin between a table's curves and the frame of its panels, in percentage points."""


@dataclass(frozen=True)
class Repeat:
    """Where a cell's number stands already: the same runs, measured in the same way."""

    table: str  # "FedCorr 2"
    anchor: str  # of the runs there


def repeats(filled: Filled, first: dict[tuple[object, ...], Repeat]) -> Mapping[tuple[int, int], Repeat]:
    """The cells [row, column] whose number an earlier cell shows; ``first`` has the first cell of each number."""
    found, table = {}, filled.table
    name = f"{table.paper} {table.number}".strip() or table.title
    for i, row in enumerate(filled.cells):
        for j, cell in enumerate(row):
            key = (filled.columns[j].key or table.metric.key, cell.over, *(run.folder for run in cell.runs))
            here = Repeat(name, _anchor(table.name, i, j))
            if cell.state == "run" and first.setdefault(key, here) != here:
                found[i, j] = first[key]
    return found


@dataclass(frozen=True)
class Shown:
    """A table on the page."""

    sheet: Sheet
    agreements: Sequence[Agreement]
    evidence: Evidence
    repeats: Mapping[tuple[int, int], Repeat]  # by row and column

    @property
    def filled(self) -> Filled:
        """The table with its values."""
        return self.sheet.filled

    @property
    def name(self) -> str:
        """The name of its files and of its anchor on the page."""
        return self.filled.table.name

    @property
    def counts(self) -> Counter[str]:
        """Cells by their state."""
        return Counter(cell.state for row in self.filled.cells for cell in row)

    def anchor(self, i: int, j: int) -> str:
        """The anchor of a cell's runs."""
        return _anchor(self.name, i, j)

    def runs_at(self, i: int, j: int) -> str:
        """The anchor under which a cell's runs are listed, here or below an earlier table."""
        return self.repeats[i, j].anchor if (i, j) in self.repeats else self.anchor(i, j)

    @cached_property
    def costs(self) -> Costs | None:
        """What its runs cost, if they have recorded it."""
        return self.evidence.costs(self.filled)

    @property
    def methods(self) -> list[str]:
        """What each row is filtered by: the paper's name of its method, or else its label."""
        return [row.method or row.label for row in self.filled.table.rows]

    @property
    def made(self) -> list[tuple[int, int, Cell]]:
        """The cells whose runs are listed below this table: those that no earlier table shows."""
        return [(i, j, cell) for i, j, cell in self.cells if (i, j) not in self.repeats]

    @property
    def cells(self) -> list[tuple[int, int, Cell]]:
        """The cells that have runs: row, column, cell."""
        every = ((i, j, cell) for i, row in enumerate(self.filled.cells) for j, cell in enumerate(row))
        return [(i, j, cell) for i, j, cell in every if cell.runs]

    @cached_property
    def _curves(self) -> list[dict[int, list[Curve]]]:
        """The curves of each column, by row."""
        indices = range(len(self.filled.columns))
        columns = [{i: self.evidence.curves(row[j]) for i, row in enumerate(self.filled.cells)} for j in indices]
        return [{i: of_row for i, of_row in column.items() if of_row} for column in columns]

    @cached_property
    def _places(self) -> dict[int, int]:
        """The rows that have a curve in any column: their places in the legend."""
        rows = sorted({i for column in self._curves for i in column})
        return {row: place for place, row in enumerate(rows)}

    @property
    def keys(self) -> list[tuple[str, int, str]]:
        """The legend of the panels: each row's label, the number of its colour, its dashes (``stroke-dasharray``)."""
        entries = []
        for row, place in self._places.items():
            colour, dashes = look(place)
            pattern = dict(zip(DASHES, ("", "5 2", "1.5 2", "6 2 1.5 2"), strict=True))[dashes]
            entries.append((self.filled.table.rows[row].label, EIGHT.index(colour), pattern))
        return entries

    @cached_property
    def panels(self) -> list[tuple[str, Markup]]:
        """Label and drawing of each column with curves, on the same axes; columns with the same runs share one."""
        every = [curve for column in self._curves for seeds in column.values() for curve in seeds]
        if not every:
            return []
        low = min(100 * float(curve.accuracy.min()) for curve in every)
        high = max(100 * float(curve.accuracy.max()) for curve in every)
        limits = max(0.0, low - HEADROOM), min(100.0, high + HEADROOM)
        furthest = max(1.0, *(float(curve.x["participations"][-1]) for curve in every))
        columns = [*zip(*self.filled.cells, strict=True)]
        runs = [tuple(run.folder for cell in cells for run in cell.runs) for cells in columns]
        same = group_by_key((runs[j], j) for j, column in enumerate(self._curves) if column)
        panels = []
        for j, *others in same.values():
            column, label = self._curves[j], self.filled.columns[j].label
            if others:
                label += f" and {counted(len(others), 'other column')} of the same runs"
            figure = drawings.curves({self._places[i]: of for i, of in column.items()}, limits, furthest)
            description = f"Test accuracy over participations of {len(column)} methods, {label}"
            panels.append((label, Markup(drawings.inline(figure, f"{self.name}-c{j + 1}", description))))
        return panels


@dataclass(frozen=True)
class Paper:
    """A paper's section of the page: its tables, and its methods ranked over all their settings."""

    name: str
    tables: Sequence[Shown]
    ranking: Ranking | None

    @property
    def anchor(self) -> str:
        """The anchor of its section."""
        return "paper-" + "".join(c if c.isalnum() else "-" for c in self.name.lower())

    @property
    def diagram(self) -> Markup | None:
        """The critical-difference diagram; None if there is no test."""
        if self.ranking is None or self.ranking.too_few:
            return None
        drawn = diagram.draw(self.ranking, self.tables[0].filled.scale.caption)
        description = f"Critical-difference diagram of {len(self.ranking.methods)} methods"
        return Markup(drawings.inline(drawn, f"{self.anchor}-cd", description))

    @cached_property
    def example(self) -> tuple[Shown, int, int, Run] | None:
        """The run whose figures are shown: the last finished one of the paper's method in its first table with one."""
        for table in self.tables:
            for i, j, cell in reversed(table.cells):
                for run in cell.runs:
                    if run.state == "finished" and table.filled.table.rows[i].method == self.name:
                        return table, i, j, run
        return None

    @cached_property
    def stills(self) -> list[tuple[str, str]]:
        """Names and PNGs (base64) of the figures of that run, except its accuracy, which the panels show."""
        if self.example is None:
            return []
        pixels = {name: _still(self.example[3].folder, name) for name in FIGURES if name != "accuracy"}
        return [(name.replace("_", " "), base64.b64encode(data).decode()) for name, data in pixels.items() if data]


def _anchor(table: str, i: int, j: int) -> str:
    return f"{table}-{i + 1}-{j + 1}"


def _still(folder: Path, name: str) -> bytes | None:
    try:
        return drawings.still(folder, name)
    except Exception as error:
        log.warning("the figure %s of %s could not be drawn (%s: %s)", name, folder, type(error).__name__, error)
        return None


def changes(papers: Sequence[Paper]) -> list[str]:
    """What the scale changes in any of the tables: what was tuned may differ from paper to paper."""
    tables = (table for paper in papers for table in paper.tables)
    return list(dict.fromkeys(change for table in tables for change in table.filled.scale.changes))


def is_tuned(papers: Sequence[Paper]) -> bool:
    """Whether methods have values that were chosen for them, in any of the tables."""
    return any(table.filled.scale.tuned for paper in papers for table in paper.tables)


def page(papers: Sequence[Paper], provenance: Mapping[str, str]) -> str:
    """Render the page."""
    tables = [table for paper in papers for table in paper.tables]
    counts = {state: sum(table.counts[state] for table in tables) for state in PLACEHOLDERS}
    return template(Path(__file__).with_name("report.html.j2"), {"shown": shown}).render(
        scale=papers[0].tables[0].filled.scale,
        tuned=is_tuned(papers),
        changes=changes(papers),
        papers=papers,
        provenance=provenance,
        counts=counts,
        total=sum(counts.values()),
        methods=sorted({method for table in tables for method in table.methods}, key=str.lower),
        states=STATES,
        counted=counted,
        pieces=pieces,
        agreement=agreement,
        ranking=ranking,
        unpublished=UNPUBLISHED,
        noise_heading=NOISE,
        cost_heading=COST_HEADING,
    )
