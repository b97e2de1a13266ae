"""Figures as SVG: learning curves of a table's methods, and critical-difference diagrams.

Equal numbers give equal bytes. ``inline`` replaces the colours of the house style by CSS variables, so the page sets
them.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.sax.saxutils import quoteattr

import matplotlib as mpl
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator
from PIL import Image

from flnl.figure_style import DASHES, EIGHT, GREY, INK, bare
from flnl.figures.curves import Curve, band
from flnl.figures.drawing import FIGURES
from flnl.figures.record import read
from flnl.tables.render.ranking import Ranking
from flnl.tables.results import Scale

PANEL = (3.1, 2.1)
"""Width and height of a panel of curves, in inches."""
POINTS = 120
"""Maximum number of points of a curve: more would not be visible in a panel, only enlarge the page."""
BAR = 2.5
"""Width, in points, of the bars that join methods without a significant difference."""
STILL_DPI = 80
"""Resolution of the figures that a page embeds as PNG."""
COLOURS = 64
"""Palette size of such a PNG: plots have few colours, and the page gets a third smaller."""
PLAIN = {"Date": None, "Creator": None, "Format": None, "Type": None}
"""Omit all SVG metadata, such as time and version, so that files are reproducible."""
VARIABLES = {INK: "currentColor", GREY: "var(--rule)"} | {
    colour: f"var(--line-{i})" for i, colour in enumerate(EIGHT) if colour != INK
}
"""CSS variables for the colours of the house style."""


def curves(rows: Mapping[int, Sequence[Curve]], limits: tuple[float, float], furthest: float) -> Figure:
    """Test accuracy over participations: a line per row, the mean over seeds with a band of one standard deviation.

    Args:
        rows: the curves of each row, one per seed, by the row's place among the drawn rows; the place sets its style.
        limits: range of the accuracy axis, in percent.
        furthest: end of the participations axis.
    """
    figure = Figure(figsize=PANEL)
    axes = figure.add_axes((0.125, 0.185, 0.855, 0.775))
    for place, seeds in rows.items():
        colour, dashes = look(place)
        mean = band(seeds, "participations")
        if not len(mean.x):
            continue
        at = np.unique(np.linspace(0, len(mean.x) - 1, POINTS).round().astype(int))
        marker = "." if len(at) == 1 else None
        axes.plot(mean.x[at], 100 * mean.mean[at], color=colour, ls=dashes, lw=1.3, marker=marker)
        if mean.deviation is not None:
            low, high = mean.mean - mean.deviation, mean.mean + mean.deviation
            axes.fill_between(mean.x[at], 100 * low[at], 100 * high[at], color=colour, alpha=0.15, lw=0)
    axes.set_xlim(0, furthest)
    axes.set_ylim(*limits)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 5, 10], integer=True))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 5, 10]))
    axes.set_xlabel("participations")
    axes.grid(axis="y", color=GREY, lw=0.4, alpha=0.5)
    bare(axes)
    axes.xaxis.label.set_color(INK)
    for spine in axes.spines.values():
        spine.set_color(INK)
    return figure


def look(place: int) -> tuple[str, str]:
    """Colour and dash pattern of the row at ``place``."""
    return EIGHT[place % len(EIGHT)], DASHES[place // len(EIGHT) % len(DASHES)]


def critical(ranking: Ranking, scale: Scale) -> Figure:
    """The critical-difference diagram: methods at their mean ranks, best on the left, bars join insignificant ones.

    The figure names the scale, since it may be copied out of its page.
    """
    import scikit_posthocs

    ranks = ranking.mean_ranks
    same = scikit_posthocs.posthoc_nemenyi_friedman(ranking.ranks)
    same.index = same.columns = list(ranking.methods)
    if not ranking.significant:
        same.loc[:, :] = 1.0
    figure = Figure(figsize=(7.5, 1.8 + 0.22 * len(ranks)))
    axes = figure.add_axes((0.22, 0.14, 0.56, 0.68))
    scikit_posthocs.critical_difference_diagram(
        ranks,
        same,
        ax=axes,
        label_fmt_left="{label}  {rank:.2f} ",
        label_fmt_right=" {rank:.2f}  {label}",
        text_h_margin=0.05 * len(ranks),
        color_palette=dict.fromkeys(ranks, INK),
        crossbar_props={"color": INK, "linewidth": BAR},
        marker_props={"s": 14},
        elbow_props={"lw": 0.9},
        label_props={"fontsize": 9, "parse_math": False},
    )
    for bar in axes.get_lines():  # their ends come from a set, whose order differs between processes
        if bar.get_linewidth() == BAR:
            bar.set_xdata(np.sort(np.asarray(bar.get_xdata(), float)))
    above = axes.get_xaxis_transform()
    axes.plot([1, 1 + ranking.critical_difference], [1.16, 1.16], color=INK, lw=1.2, transform=above, clip_on=False)
    for end in (1, 1 + ranking.critical_difference):
        axes.plot([end, end], [1.13, 1.19], color=INK, lw=1.2, transform=above, clip_on=False)
    label = f"  CD = {ranking.critical_difference:.2f}"
    axes.text(1 + ranking.critical_difference, 1.16, label, va="center", fontsize=9, color=INK, transform=above)
    axes.xaxis.set_major_locator(FixedLocator(range(1, len(ranks) + 1)))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda rank, _: f"{rank:.0f}"))
    axes.tick_params(colors=INK, labelsize=9)
    axes.spines["top"].set_color(INK)
    caption = f"{len(ranking.settings)} settings at scale “{scale.name}”: {scale.title}"
    figure.text(0.5, 0.03, caption, ha="center", fontsize=8, color=INK)
    return figure


def svg(figure: Figure) -> str:
    """The figure as a standalone SVG file."""
    text = io.StringIO()
    with mpl.rc_context({"svg.fonttype": "none", "svg.hashsalt": "flnl"}):
        FigureCanvasSVG(figure).print_svg(text, metadata=PLAIN)  # type: ignore[no-untyped-call]
    return text.getvalue()


def inline(figure: Figure, name: str, label: str) -> str:
    """The figure as an ``<svg>`` element of a page.

    Args:
        figure: its colours become CSS variables of the page.
        name: prefix of all ids, to keep them unique on the page.
        label: the ``aria-label``.
    """
    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    text = svg(figure)
    text = text[text.index("<svg") :]
    text = re.sub(r"<style.*?</style>|font-family: [^;]*; ", "", text)
    used = set(re.findall(r'(?:url\(#|href="#)([^)"]+)', text))
    text = re.sub(r' id="([^"]+)"', lambda at: f' id="{name}-{at[1]}"' if at[1] in used else "", text)
    text = re.sub(r'(url\(#|href="#)', rf"\g<1>{name}-", text)
    text = re.sub(r"\d+\.\d{3,}", lambda at: f"{float(at[0]):.1f}".rstrip("0").rstrip("."), text)
    text = re.sub(r' transform="rotate\(-?0 [^"]*"|(?<=>)\s+(?=<)', "", text)  # rotations by 0, and indentation
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    return text.replace("<svg ", f'<svg role="img" aria-label={quoteattr(label)} ', 1)


def still(folder: Path, name: str) -> bytes | None:
    """A figure of a run as PNG, drawn from its record; None if the run does not have this figure."""
    figure: Any = FIGURES[name](read(folder))
    if figure is None:
        return None
    data = io.BytesIO()
    figure.set_dpi(STILL_DPI)
    FigureCanvasAgg(figure).print_png(data, metadata={"Software": None})  # type: ignore[no-untyped-call]
    small = io.BytesIO()
    Image.open(data).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()
