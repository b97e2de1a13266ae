"""A closing metric over the values of one key: lines of rows that differ in it alone, and their figure.

FedPeer's accuracy over its privacy (Table 3), FedDiv's over its confidence (Fig. 8), FedES's error over its first
stage (Fig. 3).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from flnl.core.errors import UserError
from flnl.core.numbers import is_number
from flnl.figures.style import GREY, MARKERS, bare, legend, look, title
from flnl.instruments.compare.names import names
from flnl.instruments.compare.runs import Row
from flnl.instruments.compare.table import Column, Number

WIDE = 20.0
"""From this ratio of the key's largest to its smallest value, its axis is logarithmic."""


@dataclass(frozen=True)
class Point:
    """The metric of the runs with one value of the key; the deviation is None for a single seed."""

    at: float | None  # the key's value; None for runs without the key
    mean: float
    deviation: float | None


@dataclass(frozen=True)
class Swept:
    """A named line, and its points in any order."""

    name: str
    points: Sequence[Point]


def draw(lines: Sequence[Swept], key: str, metric: str) -> Figure:
    """Draw the lines, mean and standard deviation over seeds; one without the key is horizontal."""
    figure = Figure(figsize=(7.2, 4.4), layout="constrained")
    several = any(point.deviation is not None for line in lines for point in line.points)
    title(figure, f"{metric} over {key}" + ("; mean over seeds ± standard deviation" if several else ""))
    axes = figure.subplots()
    values: list[float] = []
    for i, line in enumerate(lines):
        color, dashes = look(i)
        style: dict[str, Any] = {"color": color, "ls": dashes, "label": line.name}
        points = sorted((p.at, p.mean, p.deviation or 0.0) for p in line.points if p.at is not None)
        if points:
            x, mean, deviation = np.array(points, np.float64).T
            drawn: dict[str, Any] = {"marker": MARKERS[i % len(MARKERS)], "ms": 4, "lw": 1.4, "capsize": 2}
            axes.errorbar(x, mean, deviation if deviation.any() else None, **drawn, **style)
            values += x.tolist()
        for level in (p for p in line.points if p.at is None):
            axes.axhline(level.mean, lw=1.2, **style)
            if level.deviation is not None:
                axes.axhspan(level.mean - level.deviation, level.mean + level.deviation, color=color, alpha=0.12, lw=0)
    if values and min(values) > 0 and max(values) / min(values) >= WIDE:
        axes.set_xscale("log")
        ticks = sorted(set(values))
        axes.set_xticks(ticks, [f"{value:g}" for value in ticks])
        axes.set_xticks([], minor=True)
    axes.set_xlabel(key)
    axes.set_ylabel(metric)
    axes.grid(axis="y", color=GREY, lw=0.4, alpha=0.5)
    bare(axes)
    if len(lines) > 1:
        legend(figure, loc="outside lower center", ncols=min(len(lines), 3))
    return figure


def swept(rows: Sequence[Row], key: str, measure: Column) -> list[Swept]:
    """Group rows that differ only in ``key`` and in keys that repeat it into lines; rows without the key are separate.

    Over ``seed``, each row is a line, with a point for each of its runs.

    Raises:
        UserError: if no row has the key as a number, or a row has no such measure.
    """
    if key == "seed":
        return [
            Swept(name, [Point(run.seed, _of(replace(row, runs=(run,)), measure).mean, None) for run in row.runs])
            for name, row in zip(names(rows), rows, strict=True)
        ]
    values = {id(row): _number(row.values.get(key)) for row in rows}
    if not any(value is not None for value in values.values()):
        raise UserError(f"--over {key}: no run has such a key with a number; give it in full, as in method.epsilon")
    keys = {k for row in rows for k in row.values}
    repeated = {k for k in keys if _repeats(rows, key, k)}
    groups: dict[str, list[Row]] = {}
    for row in rows:
        rest: Mapping[str, Any] = {k: v for k, v in row.identity.items() if k != key and k not in repeated}
        groups.setdefault(json.dumps([values[id(row)] is None, rest], sort_keys=True, default=str), []).append(row)
    labels = names([group[0] for group in groups.values()])
    return [
        Swept(
            " ".join(part for part in label.split() if not part.startswith(f"{key}=")) or label,
            [Point(values[id(row)], number.mean, number.deviation) for row in group for number in [_of(row, measure)]],
        )
        for label, group in zip(labels, groups.values(), strict=True)
    ]


def _number(value: Any) -> float | None:
    return float(value) if is_number(value) else None


def _repeats(rows: Sequence[Row], key: str, other: str) -> bool:
    """Whether ``other`` equals ``key`` in every row that has both, and the rows differ in it."""
    both = [(row.values[key], row.values[other]) for row in rows if key in row.values and other in row.values]
    return len({str(mine) for mine, _ in both}) > 1 and all(mine == theirs for mine, theirs in both)


def _of(row: Row, measure: Column) -> Number:
    number = Number.of(measure.numbers(row))
    if number is None:
        raise UserError(f"--measure {measure.key}: {row.runs[0].folder} has no such number; --where can leave it out")
    return number
