"""The figures of the benchmark's page: who is better than whom, and accuracy against cost."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean, median
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from matplotlib.transforms import Bbox

from flnl.console.words import counted
from flnl.figures.style import CLEAN, GREY, INK, WRONG, bare
from flnl.instruments.benchmark.entries import CEILING
from flnl.instruments.benchmark.leaderboard import Leaderboard

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from flnl.instruments.benchmark.page import Page

ROW, COLUMN = 0.2, 0.16
"""Height of an entry's row and width of its column in inches."""


def ranks(leaderboard: Leaderboard) -> Figure:
    """The mean rank of each entry with its bootstrap interval, and which pairs of entries differ significantly.

    Entries without a significant difference need not be neighbours, so that the bars of a critical-difference diagram
    would also join some that differ.
    """
    rows = [*leaderboard.mean_ranks]
    wide = max(4.5, COLUMN * len(rows))
    figure = Figure(figsize=(4 + wide, 1.6 + ROW * len(rows)), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True, width_ratios=(3.5, wide))
    at = np.arange(len(rows))
    low, high = np.array([leaderboard.intervals[name] for name in rows]).T
    left.hlines(at, low, high, color=GREY, lw=2)
    left.plot([leaderboard.mean_ranks[name] for name in rows], at, "o", color=CLEAN, ms=4)
    left.set_yticks(at, rows)
    left.invert_yaxis()
    left.set_xlabel("mean rank, 95 % interval")
    left.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    told = np.zeros((len(rows), len(rows)))
    for better, worse in leaderboard.better:
        one, other = rows.index(better), rows.index(worse)
        told[one, other], told[other, one] = 1, -1
    colours = ListedColormap([WRONG, "white", CLEAN])
    right.imshow(told, cmap=colours, vmin=-1, vmax=1, interpolation="nearest", aspect="auto")
    right.set_xticks(at, rows, rotation=90)
    right.xaxis.tick_top()
    for between in at[1:] - 0.5:
        right.axhline(between, color=GREY, lw=0.3)
        right.axvline(between, color=GREY, lw=0.3)
    right.set_xlabel("the row's entry is better (blue) or worse (red) than the column's")
    for axes in (left, right):
        bare(axes)
        axes.tick_params(axis="y", length=0, labelsize=7)
    right.tick_params(axis="x", length=0, labelsize=7)
    tasks = f"{counted(len(leaderboard.tasks), 'task')}, {counted(len(leaderboard.benchmark.seeds), 'seed')}"
    figure.supxlabel(f"benchmark {leaderboard.benchmark.version}, {tasks}", fontsize=8, color=INK)
    return figure


PLACES = (
    *(((4, 2), "left"), ((4, -8), "left"), ((-4, 2), "right"), ((-4, -8), "right")),
    *(((0, 6), "center"), ((0, -12), "center"), ((4, 8), "left"), ((-4, 8), "right"), ((-4, -14), "right")),
)
"""Where a name may stand beside its point: an offset in points, and the side that begins there."""


def costs(page: Page) -> Figure:
    """Mean accuracy over the noisy tasks against processor time in units of FedAvg's."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    points = [
        (cost, fmean(page.scores[name][task.name].mean for task in page.noisy), name)
        for name in page.leaderboard.mean_ranks
        if (cost := page.time(name)) is not None
    ]
    if points:
        spent, means, _ = zip(*points, strict=True)
        axes.scatter(spent, means, s=16, color=CLEAN)
        axes.set_xscale("log")
        for axis in (axes.xaxis.set_major_formatter, axes.xaxis.set_minor_formatter):
            axis("{x:g}")
        axes.margins(x=0.1)
    if (ceiling := page.scores.get(CEILING)) and all(task.name in ceiling for task in page.noisy):
        level = fmean(median(ceiling[task.name].accuracy.values()) for task in page.noisy)
        axes.axhline(level, color=INK, lw=0.8, ls="--")
        text, at = "FedAvg on right labels, median over seeds", ("axes fraction", "data")
        style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 7, "ha": "right", "color": INK}
        axes.annotate(text, (1, level), (-4, 3), xycoords=at, **style)
    axes.set_xlabel("processor time, times FedAvg's")
    axes.set_ylabel("mean accuracy over the noisy tasks, %")
    bare(axes)
    _name(axes, points)
    return figure


def _name(axes: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Write names beside points [x, y, name], where one covers no other and no point if there is such a place."""
    figure = axes.get_figure(root=True)
    assert figure is not None
    figure.draw_without_rendering()  # places the axes
    at = axes.transData.transform([(x, y) for x, y, _ in points]) if points else ()
    taken = [Bbox.from_bounds(left - 3, low - 3, 6, 6) for left, low in at]
    for x, y, name in sorted(points):
        label = axes.annotate(name, (x, y), (0, 0), textcoords="offset points", fontsize=7, color=INK)
        covered = []
        for offset, side in PLACES:
            label.set(position=offset, ha=side)
            covered.append(label.get_window_extent().count_overlaps(taken))
        offset, side = PLACES[covered.index(min(covered))]
        label.set(position=offset, ha=side)
        taken.append(label.get_window_extent())
