"""All tables on one page that needs nothing but itself: ours beside the paper's, curves, figures, runs and commands."""

from __future__ import annotations

import base64
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import jinja2
from markupsafe import Markup

from flnl.compare.runs import shown
from flnl.figure_style import DASHES, EIGHT
from flnl.figures.curves import Curve
from flnl.figures.drawing import FIGURES
from flnl.tables.render import drawings, phrases
from flnl.tables.render.agreement import Agreement
from flnl.tables.render.evidence import Evidence
from flnl.tables.render.ranking import Ranking
from flnl.tables.render.sheet import WORDS, Sheet, counted
from flnl.tables.results import Cell, Filled, Run, Scale

log = logging.getLogger(__name__)

TEMPLATE = "report.html.j2"
OWN = "tables of one's own"
STATES = {
    "run": "run",
    "partly": "run with some of the seeds",
    "absent": "not run yet",
    "failed": "failed",
    "missing": "method not there",
    "na": "not at this scale",
}
HEADROOM = 3.0
"""Percentage points between the curves of a table and the frame of its panels."""


@dataclass(frozen=True)
class Panel:
    """Curves of the methods in one column."""

    label: str
    svg: Markup


@dataclass(frozen=True)
class Key:
    """How a row's line looks, ``dashes`` as SVG has them."""

    label: str
    line: int
    dashes: str


@dataclass(frozen=True)
class Still:
    """A figure of one run, as pixels."""

    name: str
    data: str  # base64 of a PNG


@dataclass(frozen=True)
class Shown:
    """A table on the page."""

    sheet: Sheet
    agreements: Sequence[Agreement]
    evidence: Evidence

    @property
    def filled(self) -> Filled:
        """The table."""
        return self.sheet.filled

    @property
    def name(self) -> str:
        """Of its files, and of its place on the page."""
        return self.filled.table.name

    @property
    def counts(self) -> Mapping[str, int]:
        """Cells by their state."""
        return Counter(cell.state for row in self.filled.cells for cell in row)

    @property
    def total(self) -> int:
        """Number of cells."""
        return sum(self.counts.values())

    def anchor(self, i: int, j: int) -> str:
        """Where the runs of a cell are."""
        return f"{self.name}-{i + 1}-{j + 1}"

    @property
    def cells(self) -> list[tuple[int, int, Cell]]:
        """Those with runs, by row and column."""
        every = ((i, j, cell) for i, row in enumerate(self.filled.cells) for j, cell in enumerate(row))
        return [(i, j, cell) for i, j, cell in every if cell.runs]

    @cached_property
    def _curves(self) -> list[dict[int, list[Curve]]]:
        """Of each column, by row."""
        columns = range(len(self.filled.columns))
        found = [{i: self.evidence.curves(row[j]) for i, row in enumerate(self.filled.cells)} for j in columns]
        return [{i: of_row for i, of_row in column.items() if of_row} for column in found]

    @cached_property
    def _places(self) -> dict[int, int]:
        """The rows that have a curve in some column, each with its place among them."""
        rows = sorted({i for column in self._curves for i in column})
        return {row: place for place, row in enumerate(rows)}

    @property
    def keys(self) -> list[Key]:
        """Of the lines in the panels."""
        found = []
        for row, place in self._places.items():
            colour, dashes = drawings.look(place)
            pattern = dict(zip(DASHES, ("", "5 2", "1.5 2", "6 2 1.5 2"), strict=True))[dashes]
            found.append(Key(self.filled.table.rows[row].label, EIGHT.index(colour), pattern))
        return found

    @cached_property
    def panels(self) -> list[Panel]:
        """One a column that has curves, or several of the same runs, all with the same axes."""
        every = [curve for column in self._curves for found in column.values() for curve in found]
        if not every:
            return []
        low = min(100 * float(curve.accuracy.min()) for curve in every)
        high = max(100 * float(curve.accuracy.max()) for curve in every)
        limits = max(0.0, low - HEADROOM), min(100.0, high + HEADROOM)
        furthest = max(1.0, *(float(curve.x["participations"][-1]) for curve in every))
        same: dict[tuple[Path, ...], list[int]] = {}  # columns by the runs behind them
        for j, column in enumerate(self._curves):
            if column:
                runs = tuple(run.folder for row in self.filled.cells for run in row[j].runs)
                same.setdefault(runs, []).append(j)
        found = []
        for j, *others in same.values():
            column, label = self._curves[j], self.filled.columns[j].label
            if others:
                label += f" and {counted(len(others), 'other column')} of the same runs"
            figure = drawings.curves({self._places[i]: of for i, of in column.items()}, limits, furthest)
            said = f"Test accuracy over participations of {len(column)} methods, {label}"
            found.append(Panel(label, Markup(drawings.inline(figure, f"{self.name}-c{j + 1}", said))))
        return found


@dataclass(frozen=True)
class Paper:
    """The tables of a paper on the page, and its methods over all of their settings."""

    name: str
    tables: Sequence[Shown]
    ranking: Ranking | None
    evidence: Evidence

    @property
    def anchor(self) -> str:
        """Its place on the page."""
        return "paper-" + "".join(c if c.isalnum() else "-" for c in self.name.lower())

    @property
    def diagram(self) -> Markup | None:
        """Critical differences; None where there is no test."""
        if self.ranking is None or self.ranking.too_few:
            return None
        said = f"Critical-difference diagram of {len(self.ranking.methods)} methods"
        return Markup(
            drawings.inline(drawings.critical(self.ranking, self.tables[0].filled.scale), f"{self.anchor}-cd", said)
        )

    @cached_property
    def example(self) -> tuple[Shown, int, int, Run] | None:
        """The last finished run of the paper's own method in its first table that has one: its figures are shown."""
        for table in self.tables:
            for i, j, cell in reversed(table.cells):
                for run in cell.runs:
                    if run.state == "finished" and table.filled.table.rows[i].method == self.name:
                        return table, i, j, run
        return None

    @cached_property
    def stills(self) -> list[Still]:
        """The figures of that run but for its accuracy, which the panels show."""
        if self.example is None:
            return []
        pixels = {name: _still(self.example[3].folder, name) for name in FIGURES if name != "accuracy"}
        return [Still(name.replace("_", " "), base64.b64encode(data).decode()) for name, data in pixels.items() if data]


def _still(folder: Path, name: str) -> bytes | None:
    try:
        return drawings.still(folder, name)
    except Exception as error:
        log.warning("the figure %s of %s could not be drawn (%s: %s)", name, folder, type(error).__name__, error)
        return None


def page(scale: Scale, papers: Sequence[Paper], provenance: Mapping[str, str]) -> str:
    """The page."""
    loader = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(
        loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
    )
    environment.filters["shown"] = shown
    tables = [table for paper in papers for table in paper.tables]
    counts = {state: sum(table.counts[state] for table in tables) for state in WORDS}
    return environment.get_template(TEMPLATE).render(
        scale=scale,
        papers=papers,
        provenance=provenance,
        counts=counts,
        total=sum(counts.values()),
        states=STATES,
        counted=counted,
        words=phrases,
        own=OWN,
    )
