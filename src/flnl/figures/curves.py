"""Accuracy of rows of runs over rounds and over participations: mean and standard deviation over seeds."""

from __future__ import annotations

import io
import logging
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.figures.accuracy import AXES
from flnl.figures.rows import column
from flnl.figures.style import EIGHT, GREY, MARKERS, bare, legend, look, plain, title, within_shares
from flnl.record.run import RunRecord

log = logging.getLogger(__name__)

Numbers = NDArray[np.float64]

FEW = len(EIGHT)
"""Maximum number of rows for which lines and bands are drawn boldly."""
MARKED = 10
"""Markers on a line, about."""
WIDTH, PANELS = 11.0, 4.2
"""Width of the figure and height of its panels, in inches."""
PANEL, ACROSS = 2.6, 3
"""Height of a panel of a setting, in inches, and how many of them are side by side."""
LINE = 0.17
"""Height of a line of the legend, in inches."""
LETTERS, HANDLE, COLUMNS = 170, 10, 6
"""Letters that fit into the width of the legend, letters that a line's sample takes, and maximum number of columns."""
SEVERAL = "mean over seeds ± standard deviation, as far as the shortest seed"
FOLDED = 150
"""Longer names are wrapped."""


@dataclass(frozen=True)
class Curve:
    """One run's accuracies in [0, 1] by round and by participations, all [n]."""

    x: dict[str, Numbers]
    accuracy: Numbers


@dataclass(frozen=True)
class Row:
    """A named row and the curves of its seeds."""

    name: str
    curves: Sequence[Curve]


@dataclass(frozen=True)
class Band:
    """Mean and sample standard deviation over seeds at ``x``, all [n]; the deviation is None for a single seed."""

    x: Numbers
    mean: Numbers
    deviation: Numbers | None


def read(rows: Sequence[tuple[str, Sequence[Path]]]) -> list[Row]:
    """Read the curves of named rows of folders; runs without a curve are logged."""
    named = []
    for name, folders in rows:
        curves = []
        for folder in folders:
            try:
                evaluations = RunRecord.open(folder).evaluations
                accuracy = column(evaluations, "accuracy")
                finite = np.isfinite(accuracy)
                x = {key: column(evaluations, key)[finite] for key in AXES}
            except (OSError, ValueError, KeyError, TypeError, AttributeError, UserError) as error:
                log.warning("%s has no curve: metrics.jsonl cannot be read (%s)", folder, error)
                continue
            if finite.any():
                curves.append(Curve(x, accuracy[finite]))
            else:
                log.warning("%s has no curve: no accuracy is recorded", folder)
        named.append(Row(name, curves))
    return named


def band(curves: Sequence[Curve], key: str) -> Band:
    """Mean and deviation at every point where any curve has a value; between its points, a curve keeps its last value.

    The band covers only the range that all curves cover: nothing is extrapolated.
    """
    first, last = max(c.x[key][0] for c in curves), min(c.x[key][-1] for c in curves)
    points = np.unique(np.concatenate([c.x[key] for c in curves]))
    x = points[(points >= first) & (points <= last)]
    held = np.stack([c.accuracy[np.searchsorted(c.x[key], x, "right") - 1] for c in curves])
    return Band(x, held.mean(0), held.std(0, ddof=1) if len(curves) > 1 else None)


def draw_panels(panels: Sequence[tuple[str, Sequence[Row]]], dataset: str) -> Figure | None:
    """Draw accuracy over participations in a panel for each setting; a row of the same name looks the same in all.

    None if no row has a curve.
    """
    if not any(row.curves for _, rows in panels for row in rows):
        return None
    every = [row for _, rows in panels for row in rows]
    names = list(dict.fromkeys(row.name for row in every))
    labels = [_folded(name) for name in names]
    across = min(len(panels), ACROSS)
    down = -(-len(panels) // across)
    figure, columns = _figure(1.0 + PANEL * down, every, labels, dataset)
    grid = figure.subplots(down, across, squeeze=False).flat
    handles: dict[str, Any] = {}
    for axes, (setting, rows) in zip(grid, panels, strict=False):
        for row in rows:
            place = names.index(row.name)
            _draw(axes, row, "participations", place, len(rows), labels[place])
        _finish(axes, AXES["participations"])
        axes.set_title(plain(textwrap.fill(setting, FOLDED // across // 2)), loc="left", fontsize=9)
        within_shares(axes)
        axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
        handles |= {text: handle for handle, text in zip(*axes.get_legend_handles_labels(), strict=True)}
    for axes in list(figure.axes)[len(panels) :]:
        axes.remove()
    for axes in figure.axes[::across]:
        axes.set_ylabel("accuracy")
    shown = [label for label in labels if label in handles]
    legend(figure, handles=[handles[label] for label in shown], labels=shown, loc="outside lower left", ncols=columns)
    return figure


def draw(rows: Sequence[Row], dataset: str) -> Figure | None:
    """Draw each row in its own colour and with its own marker, from the ninth row with other dashes.

    None if no row has a curve.
    """
    if not any(row.curves for row in rows):
        return None
    labels = [_label(row) for row in rows]
    figure, columns = _figure(PANELS, rows, labels, dataset)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, (key, label) in zip(panels, AXES.items(), strict=True):
        for i, row in enumerate(rows):
            _draw(axes, row, key, i, len(rows), labels[i])
        _finish(axes, label)
    panels[0].set_ylabel("accuracy")
    panels[0].yaxis.set_major_formatter(PercentFormatter(1))
    within_shares(panels[0])
    legend(figure, panels[0], loc="outside lower left", ncols=columns)
    return figure


def _figure(height: float, rows: Sequence[Row], labels: Sequence[str], dataset: str) -> tuple[Figure, int]:
    """A figure with a title, and with room for a legend below panels of this ``height``; the legend's columns."""
    longest = max(len(line) for label in labels for line in label.split("\n"))
    columns = max(1, min(len(labels), COLUMNS, LETTERS // (longest + HANDLE)))
    lines = int(np.ceil(sum(label.count("\n") + 1 for label in labels) / columns))
    figure = Figure(figsize=(WIDTH, height + LINE * lines), layout="constrained")
    several = f"; {SEVERAL}" if any(len(row.curves) > 1 for row in rows) else ""
    title(figure, f"test accuracy on {dataset}{several}")
    return figure, columns


def _finish(axes: Any, label: str) -> None:
    """The axes of a panel, once its lines are drawn."""
    axes.set_xlabel(label)
    axes.set_xlim(0, max([1, *(line.get_xdata()[-1] for line in axes.lines if len(line.get_xdata()))]))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True))
    axes.grid(axis="y", color=GREY, lw=0.4, alpha=0.5)
    bare(axes)


def _label(row: Row) -> str:
    count = len(row.curves)
    seeds = " (no curve)" if not count else f" ({count} seeds)" if count > 1 else ""
    return _folded(row.name + seeds)


def _folded(name: str) -> str:
    return plain(textwrap.fill(name, FOLDED))


def _draw(axes: Any, row: Row, key: str, i: int, count: int, label: str) -> None:
    color, dashes = look(i)
    if not row.curves:
        axes.plot([], [], color=color, ls=dashes, label=label)
        return
    seeds, (width, alpha) = band(row.curves, key), (1.5, 0.18) if count <= FEW else (1.1, 0.08)
    points = {"marker": MARKERS[i % len(MARKERS)], "ms": 5, "markevery": _marked(len(seeds.x), i)}
    axes.plot(seeds.x, seeds.mean, color=color, ls=dashes, lw=width, label=label, zorder=3 + 1 / (i + 1), **points)
    if seeds.deviation is not None:
        low, high = seeds.mean - seeds.deviation, seeds.mean + seeds.deviation
        if len(seeds.x) == 1:
            axes.vlines(seeds.x, low, high, color=color, lw=1.5)
        else:
            axes.fill_between(seeds.x, low, high, color=color, alpha=alpha, lw=0)


def _marked(points: int, i: int) -> list[int]:
    """The points of line ``i`` with a marker: some ten, at other places than those of its neighbours.

    >>> _marked(3, 0), _marked(100, 1)
    ([0, 1, 2], [2, 12, 22, 32, 42, 52, 62, 72, 82, 92])
    """
    step = max(1, points // MARKED)
    return list(range(2 * i % step, points, step))


def encoded(figure: Figure, suffix: str) -> bytes:
    """A figure as the content of a file with this suffix (``.png``, ``.svg`` or ``.pdf``)."""
    content = io.BytesIO()
    FigureCanvasAgg(figure).print_figure(content, dpi=150, format=suffix.removeprefix("."))
    return content.getvalue()
