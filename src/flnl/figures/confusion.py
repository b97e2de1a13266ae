"""Confusion of true classes and held labels, at first and after each stage that corrects labels (FedCorr, Fig. 8)."""

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter
from numpy.typing import NDArray

from flnl.figures.rows import Row
from flnl.figures.style import INK, bare, plain, title
from flnl.record.run import RunRecord

Counts = NDArray[np.int64]
FEW = 20
"""Maximum number of classes for which cells show numbers and axes show names."""


def draw(record: RunRecord) -> Figure | None:
    """The whole federation: shares of the labels of each true class."""
    panels = _states(record)
    if not panels:
        return None
    few = len(panels[0][1]) <= FEW
    longest = max(map(len, record.classes or [""]))
    figure = Figure(figsize=(0.6 + 4.1 * len(panels), 5.0 + 0.06 * (longest if few else 0)), layout="compressed")
    share = "in % of a true class" if few else "share of a true class"
    title(figure, f"{record.title}: labels of all clients, {share}")
    grid = figure.subplots(1, len(panels), squeeze=False)[0]
    for axes, (name, row) in zip(grid, panels, strict=True):
        counts = np.array(row)
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        image = axes.imshow(shares, cmap="Blues", norm=PowerNorm(0.5, 0, 1), interpolation="nearest")
        if few:
            _numbers(axes, shares, lambda p: f"{100 * p:.0f}" if p >= 0.005 else "·", 7 if len(counts) <= 14 else 5)
        axes.set_title(f"{name}: {wrong(counts)} wrong", color=INK)
        axes.set_xlabel("label")
        _classes(axes, record, len(counts), left=axes is grid[0], bottom=True)
        bare(axes)
    grid[0].set_ylabel("true class")
    if not few:
        bar = figure.colorbar(image, ax=list(grid), fraction=0.025, pad=0.01, format=PercentFormatter(1))
        bar.outline.set_visible(False)
        bar.ax.tick_params(labelsize=8)
    return figure


def draw_clients(record: RunRecord) -> Figure | None:
    """The first clients, one per column: counts of samples."""
    return _of_clients(record, _states(record, clients=True), "labels of the first clients, samples")


def draw_selection(record: RunRecord) -> Figure | None:
    """The first clients: the samples that a batch rule keeps after each of its steps (FedDiv, Fig. 7)."""
    rows = record.selection
    names = [name for name in (rows[0] if rows else {}) if name != "client"]
    panels = [(name, [{"client": row["client"], "matrix": row[name]} for row in rows]) for name in names]
    return _of_clients(record, panels, "what the first clients train on, samples")


def _of_clients(record: RunRecord, panels: list[tuple[str, Any]], what: str) -> Figure | None:
    if not panels:
        return None
    clients = [one["client"] for one in panels[0][1]]
    C = len(panels[0][1][0]["matrix"])
    figure = Figure(figsize=(0.8 + 2.5 * len(clients), 0.8 + 2.55 * len(panels)), layout="constrained")
    title(figure, f"{record.title}: {what}")
    grid = figure.subplots(len(panels), len(clients), squeeze=False)
    top = [max(1, *(np.max(states[k]["matrix"]) for _, states in panels)) for k in range(len(clients))]
    for row, (line, (name, states)) in enumerate(zip(grid, panels, strict=True)):
        for k, (axes, client) in enumerate(zip(line, states, strict=True)):
            counts = np.array(client["matrix"])
            axes.imshow(counts, cmap="Blues", norm=PowerNorm(0.5, 0, top[k]), interpolation="nearest")
            _numbers(axes, counts, str, 6 if C <= 12 else 5, top=top[k])
            share = f"{wrong(counts)} wrong"
            axes.set_title(share if row else f"client {plain(record.called(client['client']))}\n{share}", color=INK)
            _classes(axes, record, C, left=k == 0, bottom=row == len(panels) - 1)
            bare(axes)
        line[0].set_ylabel(f"{name}\ntrue class")
    for axes in grid[-1]:
        axes.set_xlabel("label")
    return figure


def wrong(counts: Counts) -> str:
    """The share of labels off the diagonal, as text.

    >>> wrong(np.array([[3, 1], [0, 4]]))
    '12.5 %'
    """
    return f"{100 * (1 - np.trace(counts) / max(1, counts.sum())):.1f} %"


def _numbers(axes: Any, values: Any, say: Callable[[Any], str], size: int, *, top: float = 1) -> None:
    """Write the non-zero values into their cells, excluded from the layout to save time."""
    style: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": size, "in_layout": False, "clip_on": False}
    for i, j in zip(*np.nonzero(values), strict=True):
        axes.text(j, i, say(values[i, j]), color="white" if values[i, j] > 0.35 * top else INK, **style)


def _states(record: RunRecord, *, clients: bool = False) -> list[tuple[str, Any]]:
    """Named panels: the given labels, then those after each stage's last correction; counts [C, C], or per client."""
    rows = [row for row in record.corrections if "confusion" in row and (not clients or _first(row))]

    def matrix(row: Row, when: str) -> Any:
        if not clients:
            return row["confusion"][when]
        return [{"client": one["client"], "matrix": one[when]} for one in _first(row)]

    last = {row["stage"]: row for row in rows}
    given = [("as given", matrix(row, "before")) for row in rows[:1]]
    return given + [(f"after {stage}", matrix(row, "after")) for stage, row in last.items()]


def _first(row: Row) -> list[Any]:
    return list(row["confusion"].get("first_clients", []))


def _classes(axes: Any, record: RunRecord, number: int, *, left: bool, bottom: bool) -> None:
    names = record.classes or [str(c) for c in range(number)]
    if number > FEW or len(names) != number:
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(nbins=8, integer=True))
        axes.tick_params(labelleft=left, labelbottom=bottom)
        return
    shown = list(map(plain, names))
    axes.set_xticks(range(number) if bottom else [], shown if bottom else [])
    axes.set_yticks(range(number) if left else [], shown if left else [])
    axes.tick_params(axis="x", labelrotation=90 if max(map(len, names)) > 2 else 0)
