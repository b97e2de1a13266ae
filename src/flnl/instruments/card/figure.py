"""The figure of a federation: which classes clients hold, how many samples, and how noisy they are.

In the panels on the left, each client has the same column, so it can be followed from top to bottom.
"""

from typing import Any, cast

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from flnl.data.federation.build import Federation
from flnl.figures.style import CLEAN, INK, MANY, WRONG, bare, client_axis, plain
from flnl.instruments.card.card import transition, wrong_shares


def draw(federation: Federation) -> Figure:
    """Draw the figure; without the truth, the panels about noise are omitted."""
    known = federation.truth is not None
    figure = Figure(figsize=(13, 7.5) if known else (9, 5.5), layout="constrained")
    figure.suptitle(plain(_title(federation)), x=0.01, ha="left", fontsize=12, color=INK)
    if not known:
        counts, sizes = figure.subplots(2, 1, sharex=True, height_ratios=(2.2, 1))
        _counts(counts, federation)
        _sizes(sizes, federation)
        _clients(sizes, federation)
        return figure
    left, right = cast(Any, figure.subfigures(1, 2, width_ratios=(1.75, 1)))
    counts, sizes, noise = left.subplots(3, 1, sharex=True, height_ratios=(2.2, 1, 1))
    _counts(counts, federation)
    _sizes(sizes, federation)
    _noise(noise, federation)
    _clients(noise, federation)
    matrix, histogram = right.subplots(2, 1, height_ratios=(3.2, 1))
    _transition(matrix, federation)
    _histogram(histogram, federation)
    return figure


def _title(federation: Federation) -> str:
    held = sum(federation.sizes.values())
    title = f"{federation.dataset.name}: {held:,} samples on {federation.num_clients:,} clients"
    if len(federation.dropped):
        title += f", {len(federation.dropped):,} dropped"
    if (T := transition(federation)) is not None:
        title += f", {100 * (1 - np.trace(T) / max(1, T.sum())):.1f} % of the labels wrong"
    return title


def _counts(axes: Any, federation: Federation) -> None:
    counts = federation.class_counts(federation.given).T
    # The square root distinguishes small counts from zero without saturating the large ones.
    image = axes.imshow(
        counts, aspect="auto", cmap="Blues", norm=PowerNorm(0.5, 0, max(1, counts.max())), interpolation="nearest"
    )
    _classes(axes.yaxis, federation)
    axes.set_ylabel("given class")
    if federation.num_clients <= MANY:
        axes.xaxis.set_major_locator(MaxNLocator(nbins=20, integer=True))
    if counts.size <= 300 and counts.shape[1] <= 20:
        for (c, k), n in np.ndenumerate(counts):
            color = "white" if n > counts.max() / 2 else INK
            axes.text(k, c, n or "", ha="center", va="center", fontsize=7, color=color)
    bar = axes.figure.colorbar(image, ax=axes, pad=0.01, fraction=0.03)
    bar.set_label("samples", color=INK)
    bar.locator = MaxNLocator(nbins=6, integer=True)
    bar.ax.tick_params(labelsize=8)
    bar.outline.set_visible(False)
    bare(axes)


def _sizes(axes: Any, federation: Federation) -> None:
    sizes = np.array(list(federation.sizes.values()))
    _bars(axes, sizes, CLEAN)
    axes.set_ylabel("samples")
    bare(axes)


def _noise(axes: Any, federation: Federation) -> None:
    shares = np.array([np.nan if s is None else s for s in wrong_shares(federation) or []], float)
    _bars(axes, shares, WRONG, "wrong labels")
    if federation.nominal is not None:
        width = np.clip(400 / federation.num_clients, 2, 30)
        axes.plot(federation.nominal, ls="", marker="_", ms=width, mew=1.5, color=INK, label="nominal rate")
    axes.set_ylim(0, 1)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    axes.set_ylabel("noise")
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), ncols=2, fontsize=8, frameon=False, borderaxespad=0.1, markerscale=0.5
    )
    bare(axes)


def _transition(axes: Any, federation: Federation) -> None:
    T = transition(federation)
    assert T is not None
    share = T / np.maximum(T.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(share, cmap="Reds", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
    few = len(T) <= 20
    if few:
        for (i, j), p in np.ndenumerate(share):
            text = f"{100 * p:.0f}" if p >= 0.005 else ("" if p == 0 else "·")
            axes.text(j, i, text, ha="center", va="center", fontsize=7, color="white" if p > 0.4 else INK)
    else:
        bar = axes.figure.colorbar(image, ax=axes, fraction=0.045, pad=0.02, format=PercentFormatter(1))
        bar.outline.set_visible(False)
    _classes(axes.yaxis, federation)
    _classes(axes.xaxis, federation)
    if few and max(map(len, federation.dataset.classes)) > 3:
        axes.tick_params(axis="x", labelrotation=90)
    axes.set_ylabel("true class")
    axes.set_xlabel("given class")
    axes.set_title("of a class's labels, %" if few else "share of a class's labels", fontsize=9, color=INK)
    bare(axes)


def _histogram(axes: Any, federation: Federation) -> None:
    shares = [s for s in wrong_shares(federation) or [] if s is not None]
    axes.hist(shares, bins=np.linspace(0, 1, 26), color=WRONG, edgecolor="white", linewidth=0.5)
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(PercentFormatter(1))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=4, integer=True))
    axes.set_xlabel("wrong labels of a client")
    axes.set_ylabel("clients")
    bare(axes)


def _bars(axes: Any, heights: Any, color: str, label: str | None = None) -> None:
    if len(heights) <= MANY:
        axes.bar(np.arange(len(heights)), heights, width=0.8, color=color, label=label)
    else:  # one patch instead of thousands, without gaps that would look like stripes
        edges = np.arange(len(heights) + 1) - 0.5
        axes.stairs(np.nan_to_num(heights), edges, fill=True, color=color, label=label)
    axes.set_xlim(-0.5, len(heights) - 0.5)
    axes.set_ylim(bottom=0)


def _clients(axes: Any, federation: Federation) -> None:
    """The clients' names, where they have some and there is room; else their numbers."""
    if federation.client_names is None:
        axes.set_xlabel("client")
    else:
        client_axis(axes, federation.client_names)


def _classes(axis: Any, federation: Federation) -> None:
    if federation.num_classes <= 20:
        axis.set_ticks(range(federation.num_classes), list(map(plain, federation.dataset.classes)), fontsize=8)
    else:
        axis.set_major_locator(MaxNLocator(nbins=10, integer=True))
