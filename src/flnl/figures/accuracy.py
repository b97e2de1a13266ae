"""Accuracy over rounds and over participations (the axis of FedCorr's Fig. 9), with the borders of stages.

Beside it, how far the cohort's models moved in each round (FedDiv, Fig. 4).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from flnl.figures.rows import column
from flnl.figures.style import CLEAN, GREEN, GREY, INK, ORANGE, WRONG, bare, legend, title, within_shares
from flnl.record.run import RunRecord

AXES = {"round": "round", "participations": "participations (local trainings)"}
PANEL = 4.8
"""Width of a panel in inches, to decide whether the names of stages fit side by side."""

APART = 0.055
"""Minimum distance of slanted stage names, as a share of the axis."""


def draw(record: RunRecord) -> Figure | None:
    """Test accuracy, validation accuracy if there is one, and the local training loss."""
    accuracy = column(record.evaluations, "accuracy")
    if not np.isfinite(accuracy).any():
        return None
    figure = Figure(figsize=(11, 5.2), layout="constrained")
    title(figure, record.title)
    scores, losses = figure.subplots(2, 2, sharex="col", sharey="row", height_ratios=(3, 1))
    fit = all(_fits(record, key) for key in AXES)
    for score, loss, (key, label) in zip(scores, losses, AXES.items(), strict=True):
        _accuracy(score, record, key)
        loss.plot(column(record.per_round, key), column(record.per_round, "loss"), color=INK, lw=0.7)
        loss.set_xlabel(label)
        loss.xaxis.set_major_locator(MaxNLocator(nbins=8, steps=[1, 2, 5, 10], integer=True))
        loss.set_xlim(0, max(1, record.per_round[-1][key] if record.per_round else record.evaluations[-1][key]))
        borders(score, record, key)
        borders(loss, record, key)
        _names(score, stages(record, key), slanted=not fit)
        bare(score)
        bare(loss)
    scores[0].set_ylabel("accuracy")
    scores[0].yaxis.set_major_formatter(PercentFormatter(1))
    within_shares(scores[0])
    losses[0].set_ylabel("local loss")
    losses[0].set_ylim(bottom=0)
    legend(figure, scores[0], loc="outside lower center")
    return figure


def draw_stability(record: RunRecord) -> Figure | None:
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


def _accuracy(axes: Any, record: RunRecord, key: str) -> None:
    x, y = column(record.evaluations, key), column(record.evaluations, "accuracy")
    marker = "." if len(y) <= 40 else None
    held_out = column(record.evaluations, "validation_accuracy")
    if np.isfinite(held_out).any():
        axes.plot(x, held_out, color=GREEN, lw=1.2, ls="--", marker=marker, label="validation (noisy labels)")
    axes.plot(x, y, color=CLEAN, lw=1.5, marker=marker, label="test")
    best = int(np.nanargmax(y))
    marks = (("best", best, "*", 11, ORANGE), ("last", -1, "o", 5, WRONG))
    for above, (name, at, shape, size, color) in enumerate(marks, 4):
        label, edge = f"{name} {100 * y[at]:.2f} %", {"mec": INK, "mew": 0.6}
        axes.plot(x[at], y[at], shape, ms=size, color=color, **edge, clip_on=False, label=label, zorder=above)


def stages(record: RunRecord, key: str) -> list[tuple[str, float, float]]:
    """Each stage's name with its begin and end on the axis ``key``."""
    spans: list[tuple[str, float, float]] = []
    for row in record.per_round:
        if spans and spans[-1][0] == row["stage"]:
            spans[-1] = (row["stage"], spans[-1][1], row[key])
        else:
            spans.append((row["stage"], spans[-1][2] if spans else 0, row[key]))
    return spans


def borders(axes: Any, record: RunRecord, key: str = "round") -> None:
    """Draw where the stages after the first begin on the axis ``key``."""
    for _, start, _ in stages(record, key)[1:]:
        axes.axvline(start, color=GREY, lw=1, ls="--", zorder=0)


def _fits(record: RunRecord, key: str) -> bool:
    spans = stages(record, key)
    return all(0.07 * len(name) + 0.1 <= PANEL * (end - start) / max(1, spans[-1][2]) for name, start, end in spans)


def _names(axes: Any, spans: Sequence[tuple[str, float, float]], *, slanted: bool) -> None:
    """Write the names of two or more stages above them."""
    at, above = -np.inf, axes.get_xaxis_transform()
    turned: dict[str, Any] = {"ha": "left", "rotation": 30} if slanted else {"ha": "center"}
    for name, start, end in spans if len(spans) > 1 else ():
        at = max((start + end) / 2, at + (APART * spans[-1][2] if slanted else 0))
        axes.text(at, 1.01, name, transform=above, va="bottom", rotation_mode="anchor", fontsize=8, color=INK, **turned)
