"""Cumulative LID of clients: the fitted mixture, and how well it detects noisy clients (FedCorr, Figs. 3 and 6)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray
from scipy.special import ndtr

from flnl.figures.rows import Row, given_noise, numbers, passes
from flnl.figures.style import CLEAN, GREY, INK, WRONG, bare, legend, title
from flnl.numerics.ranks import auroc
from flnl.record.run import RunRecord

Numbers = NDArray[np.float64]
PEAK = 3.0
"""Standard deviations to both sides of its mean in which a fitted component is drawn."""
SHOWN = 4
"""Maximum number of passes shown, including the first and the last."""


def linear_fit(x: Numbers, y: Numbers) -> tuple[float, float, float]:
    """Slope, intercept and R² of the least-squares line; NaN if ``x`` or ``y`` is constant.

    >>> linear_fit(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]))
    (2.0, 1.0, 1.0)
    """
    dx, dy = x - x.mean(), y - y.mean()
    if not (dx @ dx > 0 and dy @ dy > 0):
        return (float("nan"),) * 3
    slope = float(dx @ dy / (dx @ dx))
    return slope, float(y.mean() - slope * x.mean()), float((dx @ dy) ** 2 / ((dx @ dx) * (dy @ dy)))


def expected(x: Numbers, mixture: list[float], width: float) -> Numbers:
    """The shares of the two components in bins of this width around ``x``, [2, n].

    Unlike a density, this stays comparable with a histogram however narrow a component is. ``mixture`` is means,
    variances and weights.
    """
    means, variances, weights = np.array(mixture, np.float64).reshape(3, 2, 1)
    deviations = np.sqrt(variances)
    within = ndtr((x + width / 2 - means) / deviations) - ndtr((x - width / 2 - means) / deviations)
    return np.asarray(weights * within)


def draw(record: RunRecord) -> Figure | None:
    """One column per pass: the histogram with the fitted mixture and, if the truth is known, LID against true noise.

    True noise is the share of wrong given labels, since LID accumulates over all passes, including those before labels
    were corrected.
    """
    kept = [row for row in passes(record) if "cumulative_lid" in row["clients"]]
    if not kept:
        return None
    shown = sorted({round(i) for i in np.linspace(0, len(kept) - 1, SHOWN)})
    noise = given_noise(record)
    height = 5.6 if noise is not None else 3.4
    figure = Figure(figsize=(max(6.0, 3.3 * len(shown)), height), layout="constrained")
    title(figure, f"{record.title}: cumulative LID")
    grid = figure.subplots(1 if noise is None else 2, len(shown), squeeze=False, sharex="col", sharey="row")
    for column, i in zip(grid.T, shown, strict=True):
        values = numbers(kept[i]["clients"]["cumulative_lid"])
        _histogram(column[0], kept[i], values, noise)
        heading = f"pass {i + 1} (round {kept[i]['round']})"
        if noise is not None:
            heading += "\n" + _scatter(column[1], kept[i], values, noise)
        column[0].set_title(heading, color=INK)
        column[-1].set_xlabel("cumulative LID")
        for axes in column:
            bare(axes)
    grid[0, 0].set_ylabel("clients")
    legend(figure, *grid[:, 0], loc="outside lower center", ncols=4)
    if noise is not None:
        grid[1, 0].set_ylabel("true noise level, labels as given")
        grid[1, 0].yaxis.set_major_formatter(PercentFormatter(1))
        grid[1, 0].set_ylim(-0.05, 1.05)
    return figure


def _histogram(axes: Any, row: Row, values: Numbers, noise: Numbers | None) -> None:
    finite = np.isfinite(values)
    values = values[finite]
    bins = int(np.clip(2 * np.sqrt(len(values)), 10, 40))
    edges = np.histogram_bin_edges(values, bins)
    if noise is None:
        axes.hist(values, edges, color=GREY, ec="white", lw=0.5, label="clients")
    else:
        noisy = noise[finite] > 0
        style: dict[str, Any] = {"color": [CLEAN, WRONG], "alpha": 0.6, "ec": "white", "lw": 0.5}
        names = ["clean clients", "noisy clients"]
        axes.hist([values[~noisy], values[noisy]], edges, stacked=True, label=names, **style)
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    mixture = row["mixture"]
    if None in mixture or min(mixture[2:4]) <= 0:
        return
    x = _range(edges, mixture)
    components = expected(x, mixture, edges[1] - edges[0]) * len(values)
    for component, color in zip(components, (CLEAN, WRONG), strict=True):
        axes.plot(x, component, color=color, lw=1, ls="--")
    axes.plot(x, components.sum(0), color=INK, lw=1.2, label="fitted mixture")
    top = max(patch.get_y() + patch.get_height() for patch in axes.patches)
    peak = float(components.sum(0).max())
    axes.set_ylim(0, max(1.3 * top, 1.08 * peak, axes.get_ylim()[1] if axes.get_subplotspec().colspan.start else 0))


def _range(edges: Numbers, mixture: list[float]) -> Numbers:
    """Where the fitted mixture is drawn: over the whole histogram and both peaks."""
    margin = 0.08 * (edges[-1] - edges[0])
    reach = edges[1] - edges[0] + PEAK * np.sqrt(mixture[2:4])
    low, high = (mixture[:2] - reach).min(), (mixture[:2] + reach).max()
    return np.linspace(min(low, edges[0] - margin), max(high, edges[-1] + margin), 800)


def _scatter(axes: Any, row: Row, values: Numbers, noise: Numbers) -> str:
    """Draw the clients; return AUROC and R² as text."""
    classified = np.array(row["clients"]["noisy"], bool)
    size = float(np.clip(3000 / len(values), 6, 28))
    for called, marker, word in ((False, "o", "clean"), (True, "^", "noisy")):
        at = classified == called
        colors = np.where(noise[at] > 0, WRONG, CLEAN)
        axes.scatter(values[at], noise[at], s=size, marker=marker, color=colors, alpha=0.75, lw=0)
        axes.scatter([], [], s=28, marker=marker, color=INK, lw=0, label=f"taken for {word}")
    finite = np.isfinite(values) & np.isfinite(noise)
    x, y = values[finite], noise[finite]
    slope, intercept, r2 = linear_fit(x, y) if len(x) else (float("nan"),) * 3
    if np.isfinite(slope):
        ends = np.array([x.min(), x.max()])
        axes.plot(ends, intercept + slope * ends, color=GREY, lw=1.2, zorder=0, label="linear fit")
    return f"AUROC {_number(auroc(x, y > 0))}, R² {_number(r2)}"


def _number(value: float) -> str:
    return f"{value:.2f}" if np.isfinite(value) else "–"
