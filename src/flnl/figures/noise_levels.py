"""Estimated and true noise of each client, and the verdicts on its samples (FedCorr, Fig. 7)."""

from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from flnl.figures.rows import Row, given_noise, numbers, passes
from flnl.figures.style import CLEAN, GREEN, GREY, INK, MANY, ORANGE, PURPLE, WRONG, bare, client_axis, legend, title
from flnl.record.run import RunRecord

OUTCOMES = {
    "true_positives": (GREEN, "TP: wrong, suspected"),
    "false_negatives": (PURPLE, "FN: wrong, trusted"),
    "false_positives": (ORANGE, "FP: right, suspected"),
    "true_negatives": (GREY, "TN: right, trusted"),
}
"""Stacked in this order: wrong labels below, correct ones above."""


def draw(record: RunRecord) -> Figure | None:
    """First and last pass: true noise before and after the correction, and its estimate; below TP, FN, FP and TN.

    Clients are sorted by the noise of their given labels. Estimates are compared with the labels held at that time.
    """
    given, rows = given_noise(record), passes(record) or record.corrections
    if given is None:
        return None
    shown = sorted({0, len(rows) - 1})
    order = np.argsort(given, kind="stable")
    counted = all(key in rows[i]["clients"] for i in shown for key in OUTCOMES)
    figure = Figure(figsize=(6.5 * len(shown), 5.8 if counted else 3.8), layout="constrained")
    title(figure, f"{record.title}: noise levels of clients")
    heights = (1.4, 1) if counted else (1,)
    grid = figure.subplots(len(heights), len(shown), squeeze=False, sharex="col", sharey="row", height_ratios=heights)
    for column, i in zip(grid.T, shown, strict=True):
        _levels(column[0], rows[i], order, given if i else None)
        column[0].set_title(f"pass {i + 1} (round {rows[i]['round']})", color=INK)
        if counted:
            _outcomes(column[1], rows[i], order)
        names = [record.called(rows[i]["clients"]["client"][k]) for k in order]
        client_axis(column[-1], names, "the noise of its given labels")
        for axes in column:
            bare(axes)
    grid[0, 0].set_ylabel("wrong labels")
    grid[0, 0].set_ylim(-0.02, 1.02)
    grid[0, 0].yaxis.set_major_formatter(PercentFormatter(1))
    if counted:
        grid[1, 0].set_ylabel("samples of clients\ntaken for noisy")
        grid[1, 0].yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    legend(figure, *grid[:, -1], loc="outside lower center", ncols=4)
    return figure


def _levels(axes: Any, row: Row, order: Any, given: Any) -> None:
    clients, x = row["clients"], np.arange(len(order))
    marked = len(order) < MANY
    if given is not None:
        size = 8 if marked else 4
        axes.plot(x, given[order], color=GREY, ls="", marker="_", ms=size, mew=1.6, label="true, as given")
    if {"true_noise_before", "true_noise_after"} <= clients.keys():
        before, after = (numbers(clients[f"true_noise_{when}"])[order] for when in ("before", "after"))
        axes.vlines(x, before, after, color=GREY, lw=1, zorder=0)
    points = (
        ("true_noise_before", WRONG, "D", 6, "true, before correction"),
        ("true_noise_after", CLEAN, "s", 4, "true, after correction"),
        ("level", INK, "x", 5, "estimated"),
    )
    for key, color, marker, size, label in points:
        if key in clients:
            y = numbers(clients[key])[order]
            axes.plot(x, y, color=color, ls="", marker=marker, ms=size if marked else size / 2, label=label)


def _outcomes(axes: Any, row: Row, order: Any) -> None:
    clients = row["clients"]
    noisy = np.array(clients.get("noisy", clients["asked"]), bool)[order]
    x, bottom = np.arange(len(order)), np.zeros(len(order))
    for key, (color, label) in OUTCOMES.items():
        counts = np.where(noisy, numbers(clients[key])[order], 0)
        if len(order) < MANY:
            axes.bar(x, counts, bottom=bottom, width=0.8, color=color, label=label)
        else:
            edges = np.arange(len(order) + 1) - 0.5
            axes.stairs(bottom + counts, edges, baseline=bottom, fill=True, color=color, label=label)
        bottom = bottom + counts
    axes.set_ylim(0, max(1.0, 1.05 * bottom.max(), axes.get_ylim()[1] if axes.get_subplotspec().colspan.start else 0))
