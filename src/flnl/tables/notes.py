"""What a reader of a table must know that its numbers do not say: generated from settings, then from records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from flnl.core.errors import UserError
from flnl.tables.identity import Identities, Identity
from flnl.tables.plan import Place, Plan
from flnl.tables.results import Filled
from flnl.tables.run_notes import observed
from flnl.tables.scaling import Scaling
from flnl.tables.table import Row, Table

UNSCALED = Scaling("", "", (), None, (), {}, {})
"""The words of a table as they stand."""
NO_CONSTANTS = ("method.name", "method.like")

Settings = Mapping[str, Any]
Difference = tuple[tuple[str, ...], tuple[str, ...]]  # values here, and values in the paper's setting
Rows = Mapping[
    str, Sequence[tuple[Identity, Identity | None]]
]  # by label: the cells' runs, here and in the paper's setting


def noted(plan: Plan) -> list[Filled]:
    """The tables of ``plan`` with notes of what they are at its scale."""
    identities = Identities(plan.root)
    try:
        return [
            replace(filled, notes=(*_notes(plan, filled.table, layout, identities), *observed(plan, filled, layout)))
            for filled, layout in zip(plan.filled(), plan.layouts, strict=True)
        ]
    finally:
        identities.save()


def _notes(plan: Plan, table: Table, layout: Sequence[Sequence[Place]], identities: Identities) -> Iterator[str]:
    papers = bool(table.paper) and not plan.scaling.papers
    rows = {
        row.label: list(_pairs(table, row, places, identities, papers))
        for row, places in zip(table.rows, layout, strict=True)
    }
    rows = {label: pairs for label, pairs in rows.items() if pairs}
    yield from unstated(table.unstated, rows)
    yield from constants(rows)
    yield from passes(rows)


def _pairs(
    table: Table, row: Row, places: Sequence[Place], identities: Identities, papers: bool
) -> Iterator[tuple[Identity, Identity | None]]:
    """Of each cell with other groups chosen than those before it."""
    seen = set()
    for column, place in zip(table.columns, places, strict=True):
        words = UNSCALED.words(row, column)
        chosen = tuple(word for word in words if word.startswith("experiment="))
        if not place.runs or chosen in seen:
            continue
        seen.add(chosen)
        there = None
        if papers:
            with suppress(UserError):  # a table that cannot do without a scale has nothing to be compared with
                there = identities.of((*words, "seed=1"))
        yield place.runs[0].identity, there


def unstated(keys: Sequence[str], rows: Rows) -> list[str]:
    """Which settings the paper leaves open, and what they are."""
    told = []
    for key in keys:
        here = _values(key, [one for pairs in rows.values() for one, _ in pairs])
        there = _values(key, [other for pairs in rows.values() for _, other in pairs if other is not None])
        if here:
            told.append(f"{key} ({_or(here)}{f'; {_or(there)} at scale=paper' if there and there != here else ''})")
    return [f"The paper does not state {', '.join(told)}."] if told else []


def constants(rows: Rows) -> list[str]:
    """Which settings are not those of the paper's scale: what every row shares first, then by row."""
    found = {label: differences(pairs) for label, pairs in rows.items() if any(other for _, other in pairs)}
    if not any(found.values()):
        return []
    first, *others = found.values()
    shared = {key: values for key, values in first.items() if all(other.get(key) == values for other in others)}
    groups: dict[str, list[str]] = {}
    for label, values in found.items():
        if own := _listed({key: value for key, value in values.items() if key not in shared}):
            groups.setdefault(own, []).append(label)
    told = [f"in every row {_listed(shared)}"] if shared else []
    told += [f"{', '.join(labels)}: {said}" for said, labels in groups.items()]
    return [f"Settings that differ, in brackets those of scale=paper: {'; '.join(told)}."]


def differences(pairs: Sequence[tuple[Identity, Identity | None]]) -> dict[str, Difference]:
    """Settings with other values here than in the paper's setting, by key; a constant of a method once."""
    both = [(here.settings, there.settings) for here, there in pairs if there is not None]
    found: dict[str, Difference] = {}
    for key in dict.fromkeys(key for here, there in both for key in here if key in there):
        own = [(_text(here[key]), _text(there[key])) for here, there in both if key in here and key in there]
        if key in NO_CONSTANTS or all(a == b for a, b in own):
            continue
        here, there = (tuple(dict.fromkeys(side)) for side in zip(*own, strict=True))
        found[key] = here, there
    return {key: values for key, values in found.items() if key == _top(key) or found.get(_top(key)) != values}


def _top(key: str) -> str:
    """Where a term takes it from, if it is a constant of the method."""
    return f"method.{key.rpartition('.')[2]}" if key.startswith("method.") else key


def passes(rows: Rows) -> list[str]:
    """How often local training goes over the data by each row's budget, where rows differ."""
    of = {
        label: " to ".join(sorted({f"{one.passes(one.trainings):.4g}" for one, _ in pairs}, key=float))
        for label, pairs in rows.items()
    }
    if len(set(of.values())) < 2:
        return []
    usual = Counter(of.values()).most_common(1)[0][0]
    groups: dict[str, list[str]] = {}
    for label, number in of.items():
        if number != usual:
            groups.setdefault(number, []).append(label)
    told = "; ".join(f"{number} in {', '.join(labels)}" for number, labels in groups.items())
    return [
        f"By their budgets rows differ in how often local training goes over the data: {told}; {usual} in the others."
    ]


def _values(key: str, runs: Sequence[Identity]) -> list[str]:
    return list(dict.fromkeys(_text(run.settings[key]) for run in runs if key in run.settings))


def _listed(found: Mapping[str, Difference]) -> str:
    return ", ".join(
        f"{key.removeprefix('method.')} {_or(here)} ({_or(there)})" for key, (here, there) in found.items()
    )


def _or(values: Sequence[str]) -> str:
    return " or ".join(values)


def _text(value: Any) -> str:
    if value is None:
        return "none"
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value)
