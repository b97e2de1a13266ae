"""A measure over the values of one key, as lines of a figure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from flnl.core.errors import UserError
from flnl.figures.over import Point, Swept
from flnl.instruments.compare.names import names
from flnl.instruments.compare.runs import Row
from flnl.instruments.compare.table import Column, Number


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
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _repeats(rows: Sequence[Row], key: str, other: str) -> bool:
    """Whether ``other`` equals ``key`` in every row that has both, and the rows differ in it."""
    both = [(row.values[key], row.values[other]) for row in rows if key in row.values and other in row.values]
    return len({str(mine) for mine, _ in both}) > 1 and all(mine == theirs for mine, theirs in both)


def _of(row: Row, measure: Column) -> Number:
    number = Number.of(measure.numbers(row))
    if number is None:
        raise UserError(f"--measure {measure.key}: {row.runs[0].folder} has no such number; --where can leave it out")
    return number
