"""Figures as SVG: learning curves of a table's methods, and any figure in a page.

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
from matplotlib.ticker import MaxNLocator
from PIL import Image

from flnl.figures.curves import Curve, band
from flnl.figures.drawing import FIGURES
from flnl.figures.style import EIGHT, GREY, INK, bare, look
from flnl.record.run import RunRecord

PANEL = (3.1, 2.1)
"""Width and height of a panel of curves, in inches."""
POINTS = 120
"""Maximum number of points of a curve: more would not be visible in a panel, only enlarge the page."""
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

    ``rows`` has the curves of each row, one per seed, by its place among the drawn rows, which sets its style. The axes
    go over ``limits`` of accuracy, in percent, and to the ``furthest`` participation.
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
    figure: Any = FIGURES[name](RunRecord.open(folder).with_lines())
    if figure is None:
        return None
    data = io.BytesIO()
    figure.set_dpi(STILL_DPI)
    FigureCanvasAgg(figure).print_png(data, metadata={"Software": None})  # type: ignore[no-untyped-call]
    small = io.BytesIO()
    Image.open(data).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(small, "PNG", optimize=True)
    return small.getvalue()
