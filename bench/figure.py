"""The figure: a panel per workload, a bar per way with its speed relative to the hand-written loop."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from bench.report import Results, time_of
from flnl.figures.style import CLEAN, GREY, INK, bare, title

COLOURS = {"hand": INK, "centralised": GREY, "ours": CLEAN, "peer": GREY}
NAMES = {"hand": "hand-written loop", "centralised": "centralised training", "ours": "flnl", "peer": "other frameworks"}


def draw(results: Results, path: Path) -> None:
    """Write the figure as PNG."""
    import matplotlib as mpl

    mpl.use("agg")
    from matplotlib import pyplot as plt
    from matplotlib.patches import Patch

    names = list(results.measured)
    columns = min(4, len(names))
    rows = math.ceil(len(names) / columns)
    tallest = max(len(measured) for measured in results.measured.values())
    figure, grid = plt.subplots(
        rows,
        columns,
        figsize=(3.3 * columns, (0.9 + 0.24 * tallest) * rows + 0.7),
        squeeze=False,
        layout="constrained",
    )
    for axes, name in zip(grid.flat, names, strict=False):
        _panel(axes, results, name, tallest)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    title(
        figure,
        "Rounds: how many times as fast as a loop written by hand for one core (median, and range of the repeats)",
    )
    kinds = dict.fromkeys(m.kind for measured in results.measured.values() for m in measured)
    patches = [Patch(color=COLOURS[kind], label=NAMES[kind]) for kind in kinds]
    figure.legend(handles=patches, loc="outside lower center", ncols=4, fontsize=8, frameon=False)
    figure.savefig(path, dpi=150)
    plt.close(figure)


def _panel(axes: Any, results: Results, name: str, tallest: int) -> None:
    workload, measured, floor = results.workloads[name], results.measured[name], results.floor(name)
    bare(axes)
    ratios = [results.ratio(name, m) for m in measured]
    clear = {"facecolor": "white", "edgecolor": "none", "pad": 0.6}  # keeps the line at 1 behind the numbers
    most = max([r.high for r in ratios if r is not None], default=1.0)
    for place, (m, ratio) in enumerate(zip(measured, ratios, strict=True)):
        if ratio is None:
            axes.text(
                0.02 * most, place, "failed" if m.failure else "-", va="center", fontsize=8, color=INK, bbox=clear
            )
            continue
        axes.barh(place, ratio.median, color=COLOURS[m.kind], height=0.72)
        if m.kind != "hand":
            axes.plot([ratio.low, ratio.high], [place, place], color=INK, linewidth=1)
        axes.text(
            ratio.high + 0.02 * most, place, f"{ratio.median:.2f}", va="center", fontsize=8, color=INK, bbox=clear
        )
    axes.axvline(1, color=INK, linewidth=0.8, linestyle=(0, (3, 3)), zorder=1.5)
    axes.set_yticks(range(len(measured)), [m.way for m in measured])
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(tallest - 0.5, -0.5)  # bars are equally high in all panels
    axes.set_xlim(0, 1.18 * most)
    base = "" if floor is None or floor.spread is None else f"\nhand: {time_of(floor.spread.median)} a round"
    axes.set_title(f"{workload.title}{base}", loc="left", fontsize=9)
