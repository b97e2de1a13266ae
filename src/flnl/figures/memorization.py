"""Predictions on correctly and wrongly labelled training samples over rounds (FLR, Fig. 2 and Table 1)."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from flnl.figures.accuracy import borders
from flnl.figures.rows import Row, column
from flnl.figures.style import CLEAN, ORANGE, WRONG, bare, legend, title
from flnl.record.run import RunRecord

PANELS = {
    "samples with right labels": {"clean_correct": (CLEAN, "correct"), "clean_wrong": (ORANGE, "another class")},
    "samples with wrong labels": {
        "noisy_correct": (CLEAN, "correct"),
        "noisy_memorized": (WRONG, "memorized: the given class"),
        "noisy_wrong": (ORANGE, "another class"),
    },
}
"""The shares that each panel shows; they sum to 1."""


def draw(record: RunRecord) -> Figure | None:
    """The global model on all training samples; None for a run without ``eval.memorization``."""
    return _panels(record, record.evaluations, "memorization", "memorization")


def draw_local(record: RunRecord) -> Figure | None:
    """The cohort's models on their clients' samples, averaged over noisy clients; None without ``eval.cohort``."""
    return _panels(record, record.per_round, "local_memorization", "memorization by clients' models")


def _panels(record: RunRecord, rows: Sequence[Row], prefix: str, heading: str) -> Figure | None:
    """A panel for correct labels and one for wrong ones."""
    if not np.isfinite([column(rows, f"{prefix}_{name}") for shown in PANELS.values() for name in shown]).any():
        return None
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    title(figure, f"{record.title}: {heading}")
    rounds = column(rows, "round")
    marker = "." if len(rounds) <= 40 else None
    for axes, (kind, shown) in zip(figure.subplots(1, 2, sharey=True), PANELS.items(), strict=True):
        for name, (color, label) in shown.items():
            shares = column(rows, f"{prefix}_{name}")
            there = np.isfinite(shares)  # undefined in rounds whose clients are all clean
            axes.plot(rounds[there], shares[there], color=color, lw=1.5, marker=marker, label=label)
        borders(axes, record)
        axes.set_title(kind)
        axes.set_xlabel("round")
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True))
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(PercentFormatter(1))
        bare(axes)
    figure.axes[0].set_ylabel("share of the samples")
    legend(figure, figure.axes[1], loc="outside lower center")  # it has the labels of the first panel, too
    return figure
