"""The table of ``docs/three_hospitals.md``: what goes beside the model, by method, as the types of its parts say.

``python -m tests.sites.leaving`` writes it anew.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import get_type_hints

from flnl.config import compose
from flnl.core.method import Method
from flnl.core.stored import name_of
from flnl.run.opening import method_of
from flnl.sites.policy import revealed
from flnl.sites.traffic import meaning

PAGE = Path(__file__).resolve().parents[2] / "docs" / "three_hospitals.md"
BEGIN, END = "<!-- from the types of the methods' parts: python -m tests.sites.leaving -->", "<!-- until here -->"
NOTHING = "nothing"


def table() -> str:
    """The rows, and below them what the types are that go up."""
    by_row: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    meanings: dict[str, str] = {}
    for name in compose.options("method"):
        method = method_of(compose.load([f"method={name}"]), [])
        ups = _up(method)
        meanings |= {_called(kind): meaning(kind).removeprefix(": ") for kind in ups}
        by_row[_kinds(ups, method), _all_down(method), _allowed(method)].append(name)
    order = sorted(by_row.items(), key=lambda row: (row[0][0] != NOTHING, row[0][1] != NOTHING, row[1]))
    lines = ["| method | up | down | to be allowed |", "|---|---|---|---|"]
    lines += [f"| {', '.join(f'`{name}`' for name in names)} | {' | '.join(row)} |" for row, names in order]
    lines += ["", "| goes up | what it is |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in sorted(meanings.items())]
    return "\n".join(lines)


def _up(method: Method) -> list[type]:
    """The types that clients send beside their models."""
    acting = {name for stage in method.stages for name in stage.exchange}
    found = [kind for name in method.exchange if name in acting for kind in method.exchange[name].reports]
    if method.corrector is not None:
        found += method.corrector.reports
    return list(dict.fromkeys([*found, *(kind for stage in method.stages for kind in stage.sampler.asks)]))


def _down(method: Method) -> list[type]:
    acting = {name for stage in method.stages for name in stage.exchange}
    sent = [kind for name in method.exchange if name in acting for kind in method.exchange[name].sends]
    return list(dict.fromkeys(sent))


def _at_the_end(method: Method) -> str:
    """What a site is told of what exchanges have found about it."""
    kinds = [get_type_hints(type(one).own)["return"] for one in method.exchange.values() if one.overrides("own")]
    return f", {_kinds(kinds)} at the end" if kinds else ""


def _all_down(method: Method) -> str:
    return f"{_kinds(_down(method))}{_at_the_end(method)}".removeprefix(f"{NOTHING}, ")


def _kinds(kinds: Iterable[type], method: Method | None = None) -> str:
    costs = {} if method is None else revealed(method)
    marks = {kind: "" if math.isinf(cost) else f" (ε = {cost:g})" for kind, cost in costs.items()}
    return ", ".join(f"`{_called(kind)}`{marks.get(kind, '')}" for kind in kinds) or NOTHING


def _called(kind: type) -> str:
    """A type's stored name; of one that is only ever computed with in a simulation, its own."""
    try:
        return name_of(kind)
    except TypeError:
        return kind.__name__


def _allowed(method: Method) -> str:
    names = [name_of(kind) for kind, cost in revealed(method).items() if math.isinf(cost)]
    return ", ".join(f"`{name}`" for name in names) or ""


def written(page: str) -> str:
    """A page with today's table."""
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n\n{table()}\n\n{END}{rest.split(END)[1]}"


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text()))
