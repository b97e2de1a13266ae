"""Training stability: how far the cohort's models moved in each round, beside the accuracy (FedDiv, Fig. 4)."""

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from flnl.figures.accuracy import borders
from flnl.figures.rows import column
from flnl.figures.style import CLEAN, ORANGE, bare, title
from flnl.record.run import RunRecord


def draw(record: RunRecord) -> Figure | None:
    """Mean squared distance moved over rounds, log scale, and test accuracy; None without ``eval.cohort``."""
    moved = column(record.per_round, "training_stability")
    if not (np.isfinite(moved) & (moved > 0)).any():
        return None
    figure = Figure(figsize=(6.5, 4.6), layout="constrained")
    title(figure, f"{record.title}: stability of training")
    above, below = figure.subplots(2, 1, sharex=True)
    above.plot(column(record.per_round, "round"), moved, color=ORANGE, lw=1.2, marker="." if len(moved) <= 40 else None)
    above.set_yscale("log")
    above.set_ylabel("squared move of a client, mean")
    below.plot(column(record.evaluations, "round"), column(record.evaluations, "accuracy"), color=CLEAN, lw=1.5)
    below.set_ylabel("accuracy")
    below.yaxis.set_major_formatter(PercentFormatter(1))
    below.set_xlabel("round")
    below.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True))
    for axes in (above, below):
        borders(axes, record)
        bare(axes)
        axes.tick_params(which="minor", labelsize=6)
    return figure
