"""A closing metric of runs over a swept key: mean and standard deviation over seeds.

FedPeer's accuracy over its privacy (Table 3), FedDiv's over its confidence (Fig. 8), FedES's error over its first
stage (Fig. 3).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flnl.figures.style import DASHES, EIGHT, GREY, MARKERS, bare, legend, title

WIDE = 20.0
"""From this ratio of the key's largest to its smallest value, its axis is logarithmic."""


@dataclass(frozen=True)
class Point:
    """The metric of the runs with one value of the key; the deviation is None for a single seed."""

    at: float | None  # the key's value; None for runs without the key
    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Swept:
    """A named line, and its points in any order."""

    name: str
    points: Sequence[Point]


def draw(lines: Sequence[Swept], key: str, metric: str) -> Figure:
    """Draw the lines; one without the key is horizontal."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    several = any(point.deviation is not None for line in lines for point in line.points)
    title(figure, f"{metric} over {key}" + ("; mean over seeds ± standard deviation" if several else ""))
    axes = figure.subplots()
    values: list[float] = []
    for i, line in enumerate(lines):
        style: dict[str, Any] = {
            "color": EIGHT[i % len(EIGHT)],
            "ls": DASHES[i // len(EIGHT) % len(DASHES)],
            "label": line.name,
        }
        drawn: dict[str, Any] = {"marker": MARKERS[i % len(MARKERS)], "ms": 4, "lw": 1.4, "capsize": 2}
        points = sorted((p.at, p.mean, p.deviation or 0.0) for p in line.points if p.at is not None)
        if points:
            x, mean, deviation = _columns(points)
            axes.errorbar(x, mean, deviation if deviation.any() else None, **drawn, **style)
            values += x.tolist()
        for level in (p for p in line.points if p.at is None):
            axes.axhline(level.mean, lw=1.2, **style)
            if level.deviation is not None:
                low, high = level.mean - level.deviation, level.mean + level.deviation
                axes.axhspan(low, high, color=style["color"], alpha=0.12, lw=0)
    if values and min(values) > 0 and max(values) / min(values) >= WIDE:
        axes.set_xscale("log")
        ticks = sorted(set(values))
        axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
        axes.set_xticks([], minor=True)
    axes.set_xlabel(key)
    axes.set_ylabel(metric)
    axes.grid(axis="y", color=GREY, lw=0.4, alpha=0.5)
    bare(axes)
    if len(lines) > 1:
        legend(figure, loc="outside lower center", ncols=min(len(lines), 3))
    return figure


def _columns(points: Sequence[tuple[float, float, float]]) -> tuple[NDArray[np.float64], ...]:
    return tuple(np.array(column, np.float64) for column in zip(*points, strict=True))
