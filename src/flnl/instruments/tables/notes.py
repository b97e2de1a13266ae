"""Notes below a table: how its settings differ from the paper's, and what the records of its runs show."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from flnl.core.errors import UserError
from flnl.core.grouping import group_by_key
from flnl.core.numbers import is_number
from flnl.instruments.tables.identity import Identities, Identity
from flnl.instruments.tables.plan import Place, Plan
from flnl.instruments.tables.results import Filled
from flnl.instruments.tables.run_notes import with_observations
from flnl.instruments.tables.scaling import Scaling
from flnl.instruments.tables.table import Row, Table

UNSCALED = Scaling("", "", (), None, (), {}, {})
"""No scale: the overrides of a table unchanged."""
NO_CONSTANTS = ("method.name", "method.like")

Difference = tuple[tuple[str, ...], tuple[str, ...]]  # values here, and values in the paper's setting
Rows = Mapping[str, Sequence[tuple[Identity, Identity | None]]]
"""By label: the cells' runs, here and in the paper's setting."""


def noted(plan: Plan) -> list[Filled]:
    """The tables of ``plan`` with notes on their settings at its scale."""
    identities = Identities(plan.root)
    try:
        return [
            with_observations(
                plan, replace(filled, notes=tuple(_notes(plan, filled.table, layout, identities))), layout
            )
            for filled, layout in zip(plan.filled(), plan.layouts, strict=True)
        ]
    finally:
        identities.save()


def _notes(plan: Plan, table: Table, layout: Sequence[Sequence[Place]], identities: Identities) -> Iterator[str]:
    if not table.paper:
        yield from own_overrides(plan.scaling, table, layout)
    papers = bool(table.paper) and not plan.scaling.papers
    rows = {
        row.label: list(_pairs(table, row, places, identities, papers))
        for row, places in zip(table.rows, layout, strict=True)
    }
    rows = {label: pairs for label, pairs in rows.items() if pairs}
    yield from unstated(table.unstated, rows)
    yield from constants(rows)
    yield from passes(rows)


def own_overrides(scaling: Scaling, table: Table, layout: Sequence[Sequence[Place]]) -> list[str]:
    """The overrides that all runs of a table have, other than those of the scale; its labels tell what differs."""
    here = scaling.for_table(table)
    cells = [
        here.resolve(row, column)
        for row, places in zip(table.rows, layout, strict=True)
        for column, place in zip(table.columns, places, strict=True)
        if place.runs
    ]
    every = [one for one in cells[0] if all(one in cell for cell in cells)] if len(cells) > 1 else []
    own = ", ".join(one for one in every if one not in scaling.overrides)
    return [f"All runs have {own}. Where these or a label differ from the scale, they hold."] if own else []


def _pairs(
    table: Table, row: Row, places: Sequence[Place], identities: Identities, papers: bool
) -> Iterator[tuple[Identity, Identity | None]]:
    """The run of a row here and at the paper's scale, once per experiment that the row's columns choose."""
    seen = set()
    for column, place in zip(table.columns, places, strict=True):
        overrides = UNSCALED.resolve(row, column)
        chosen = tuple(override for override in overrides if override.startswith("experiment="))
        if not place.runs or chosen in seen:
            continue
        seen.add(chosen)
        there = None
        if papers:
            with suppress(UserError):  # a table that needs a scale has no setting of the paper's to compare with
                there = identities.of((*overrides, "seed=1"))
        yield place.runs[0].identity, there


def unstated(keys: Sequence[str], rows: Rows) -> list[str]:
    """The settings that the paper does not state, with the values that are used.

    Raises:
        UserError: for a key that is no setting of any row.
    """
    settings = []
    for key in keys:
        here = _values(key, [one for pairs in rows.values() for one, _ in pairs])
        there = _values(key, [other for pairs in rows.values() for _, other in pairs if other is not None])
        if rows and not here:
            raise UserError(f"unstated names {key}, which is no setting of any row")
        if here:
            settings.append(f"{key} ({_or(here)}{f'; {_or(there)} at scale=paper' if there and there != here else ''})")
    return [f"The paper does not state {', '.join(settings)}."] if settings else []


def constants(rows: Rows) -> list[str]:
    """The settings that differ from the paper's scale: first those that all rows share, then those of single rows."""
    changes = {label: differences(pairs) for label, pairs in rows.items() if any(other for _, other in pairs)}
    if not any(changes.values()):
        return []
    first, *others = changes.values()
    shared = {key: values for key, values in first.items() if all(other.get(key) == values for other in others)}
    own = {label: {k: value for k, value in values.items() if k not in shared} for label, values in changes.items()}
    parts = [f"in every row {_listed(shared)}"] if shared else []
    groups = group_by_key((_listed(values), label) for label, values in own.items() if values)
    parts += [f"{', '.join(labels)}: {text}" for text, labels in groups.items()]
    return [f"Settings that differ, in brackets those of scale=paper: {'; '.join(parts)}."]


def differences(pairs: Sequence[tuple[Identity, Identity | None]]) -> dict[str, Difference]:
    """The settings whose values differ from the paper's, by key.

    A constant that several parts of a method share is listed once, under the method's key.
    """
    both = [(here.settings, there.settings) for here, there in pairs if there is not None]
    changed: dict[str, Difference] = {}
    for key in dict.fromkeys(key for here, there in both for key in here if key in there):
        values = [(_text(here[key]), _text(there[key])) for here, there in both if key in here and key in there]
        if key in NO_CONSTANTS or all(a == b for a, b in values):
            continue
        here, there = (tuple(dict.fromkeys(side)) for side in zip(*values, strict=True))
        changed[key] = here, there
    return {key: sides for key, sides in changed.items() if key == _top(key) or changed.get(_top(key)) != sides}


def _top(key: str) -> str:
    """The method's key of the same name, for a constant of one of its parts; else ``key``."""
    return f"method.{key.rpartition('.')[2]}" if key.startswith("method.") else key


def passes(rows: Rows) -> list[str]:
    """The passes over the data in each row's budget, if rows differ."""
    of = {
        label: " to ".join(sorted({f"{one.passes(one.trainings):.4g}" for one, _ in pairs}, key=float))
        for label, pairs in rows.items()
    }
    if len(set(of.values())) < 2:
        return []
    usual = Counter(of.values()).most_common(1)[0][0]
    groups = group_by_key((number, label) for label, number in of.items() if number != usual)
    others = "; ".join(f"{number} in {', '.join(labels)}" for number, labels in groups.items())
    head = "By their budgets rows differ in how often local training goes over the data"
    return [f"{head}: {others}; {usual} in the others."]


def _values(key: str, runs: Sequence[Identity]) -> list[str]:
    return list(dict.fromkeys(_text(run.settings[key]) for run in runs if key in run.settings))


def _listed(changes: Mapping[str, Difference]) -> str:
    return ", ".join(
        f"{key.removeprefix('method.')} {_or(here)} ({_or(there)})" for key, (here, there) in changes.items()
    )


def _or(values: Sequence[str]) -> str:
    return " or ".join(values)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if is_number(value) else str(value)
