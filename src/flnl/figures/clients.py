"""A method's final findings about each client beside the truth: suspected samples, data quality, noisy clients."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter
from numpy.typing import NDArray

from flnl.figures.rows import Row, numbers
from flnl.figures.style import CLEAN, GREY, INK, MANY, ORANGE, WRONG, bare, client_axis, legend, title
from flnl.record.run import RunRecord


def _clients(record: RunRecord, key: str) -> Row | None:
    """The per-client columns; None if they lack ``key``."""
    rows: Row = record.clients
    return rows if key in rows else None


def _axis(axes: Any, record: RunRecord, clients: Sequence[int], order: NDArray[np.int64]) -> None:
    client_axis(axes, [record.called(clients[i]) for i in order], "the noise of its labels")


def _by_noise(record: RunRecord, rows: Row, heading: str) -> tuple[Any, NDArray[np.int64], NDArray[np.float64], bool]:
    """The axes of a figure; clients in the order of the noise of their labels, this noise, and whether they are few."""
    noise = 1 - numbers(rows["true_quality"])
    figure = Figure(figsize=(7.5, 3.8), layout="constrained")
    title(figure, f"{record.title}: {heading}")
    order = np.argsort(noise, kind="stable")
    return figure.subplots(), order, noise[order], len(order) < MANY


def _shares_by_client(axes: Any, record: RunRecord, order: NDArray[np.int64], lowest: float) -> Figure:
    """The figure of shares by client, finished: its axes, and a legend below."""
    figure: Figure = axes.figure
    axes.set_ylim(lowest, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1))
    _axis(axes, record, record.clients["client"], order)
    bare(axes)
    legend(figure, loc="outside lower center", ncols=3)
    return figure


def draw_filter(record: RunRecord) -> Figure | None:
    """Share of correct flags per client, with its true noise and the share of flagged samples (FedDiv, Figs. 3, 5)."""
    rows = _clients(record, "filter_accuracy")
    if rows is None:
        return None
    accuracy = numbers(rows["filter_accuracy"])
    mean = f"{100 * np.nanmean(accuracy):.1f} % right in the mean over clients"
    axes, order, noise, marked = _by_noise(record, rows, f"flags of the noise filter, {mean}")
    x = np.arange(len(order))
    axes.bar(x, accuracy[order], width=0.8 if marked else 1.0, color=GREY, label="samples with a right flag")
    axes.plot(x, noise, color=WRONG, ls="", marker="D", ms=4 if marked else 2, label="wrong labels, true")
    flagged = numbers(rows["flagged"])[order]
    style = {"marker": "x", "ms": 5 if marked else 3, "mew": 1.4}
    axes.plot(x, flagged, color=INK, ls="", label="taken for wrong", **style)
    axes.set_ylabel("samples of the client")
    return _shares_by_client(axes, record, order, 0)


def draw_noisy(record: RunRecord) -> Figure | None:
    """True noise of each client, coloured by the method's verdict, and its estimated noise level."""
    rows = _clients(record, "noisy")
    if rows is None:
        return None
    noisy = np.array(rows["noisy"], bool)
    right = float((noisy == (numbers(rows["true_quality"]) < 1)).mean())
    heading = f"noisy clients, {100 * right:.1f} % of clients called rightly"
    axes, order, noise, marked = _by_noise(record, rows, heading)
    x, size = np.arange(len(order)), 5 if marked else 3
    for called, color, marker, word in ((False, CLEAN, "o", "clean"), (True, WRONG, "^", "noisy")):
        at = noisy[order] == called
        axes.plot(x[at], noise[at], ls="", marker=marker, ms=size, color=color, label=f"called {word}")
    axes.vlines(x, 0, noise, color=GREY, lw=1, zorder=0)
    if "level" in rows:
        level = numbers(rows["level"])[order]
        axes.plot(x, level, ls="", marker="x", ms=size, mew=1.4, color=INK, label="estimated noise level")
    axes.set_ylabel("wrong labels of the client, true")
    return _shares_by_client(axes, record, order, -0.02)


def draw_quality(record: RunRecord) -> Figure | None:
    """Estimated and true quality, per client and as a scatter plot (FedES, Fig. 2)."""
    rows = _clients(record, "quality")
    if rows is None:
        return None
    true, estimated = numbers(rows["true_quality"]), numbers(rows["quality"])
    order = np.argsort(-true, kind="stable")
    x, marked = np.arange(len(order)), len(order) < MANY
    figure = Figure(figsize=(9.5, 3.8), layout="constrained")
    metrics = record.metrics
    scores = [
        f"{name} {metrics[key]:.3f}"
        for key, name in (("quality_error", "MSE"), ("quality_rank_correlation", "rank correlation"))
        if metrics.get(key) is not None
    ]
    title(figure, ", ".join([f"{record.title}: quality of clients", *scores]))
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    left.plot(x, true[order], color=CLEAN, ls="", marker="o", ms=4 if marked else 2, label="true")
    left.plot(x, estimated[order], color=ORANGE, ls="", marker="x", ms=5 if marked else 3, label="estimated")
    left.vlines(x, true[order], estimated[order], color=GREY, lw=1, zorder=0)
    left.set_ylabel("share of right labels")
    _axis(left, record, rows["client"], order)
    right.plot([0, 1], [0, 1], color=GREY, lw=1)
    right.plot(true, estimated, ls="", marker="o", ms=4, color=ORANGE)
    right.set(xlabel="true", ylabel="estimated", xlim=(-0.02, 1.02))
    for axes in (left, right):
        axes.set_ylim(-0.02, 1.02)
        bare(axes)
    legend(left, loc="lower left")
    return figure
