"""The tables of ``docs/three_hospitals.md``: what crosses with each method, message and audit, as their types say.

What a message tells a site of others no type says; it is said here, of every type (``OF_OTHERS``).

``python -m tests.sites.leaving`` writes it anew.
"""

import importlib
import math
import pkgutil
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import TypeVar, get_type_hints

from flnl import sites
from flnl.config import compose
from flnl.core.method import Method
from flnl.core.stored import name_of
from flnl.run.opening import method_of
from flnl.sites.audit_messages import ANSWERS, Question
from flnl.sites.messages import ASKED
from flnl.sites.policy import revealed
from flnl.sites.traffic import meaning

PAGE = Path(__file__).resolve().parents[2] / "docs" / "three_hospitals.md"
BEGIN, END = "<!-- from the types of the methods' parts: python -m tests.sites.leaving -->", "<!-- until here -->"
MESSAGES = "<!-- from the types of messages: python -m tests.sites.leaving -->"
NOTHING = "nothing"
T = TypeVar("T")

OF_OTHERS = {
    "hello": NOTHING,
    "open": "how many clients there are, and how many of them have samples",
    "task": "the model that all have trained; after a round of one site, what that site alone has trained. What the "
    "method sends down beside it (above), and which rounds this site is asked in",
    "evaluate": "the model after that round, also to sites that are not asked to train",
    "record": "the same",
    "finish": "the evaluated model; `own` is what the method has found about this site beside others",
    "audit": "see the next table",
}
"""By kind of message to a site."""
OF_OTHERS_IN_AUDITS = {
    (
        "step",
        "options",
        "seed",
        "tells_wrong",
        "summed",
        "cut",
    ): "nothing: whoever audits chooses them; only `cut` of `min_precision` comes from all sites' counts",
    ("test_labels", "test_probabilities"): "nothing: the server's test samples, of which it has none",
    ("thresholds",): "the mean probability of the label, over all sites' samples of each class",
    ("counts",): "how many labels of each class all sites have",
    ("joint", "off_diagonal"): "how many samples of all sites are of which given and which likely class",
    (
        "rate",
        "shift",
    ): "of this site: how many of its labels seem wrong beside the mean of all sites",
    ("together",): "the sum of all sites' evidence of how many labels are wrong; nothing without test samples",
    (
        "others",
    ): "of all others together: their client numbers, samples, disagreements, issues, flagged labels, samples "
    "below each cut, and an estimate of the wrong labels",
    ("head",): "at how many sites the number of wrong labels is hardly known; the rest is about the run",
}
"""By fields of a question of an audit."""


@cache
def methods() -> Mapping[str, Method]:
    """All methods in their default settings, by name."""
    return {name: method_of(compose.load([f"method={name}"]), []) for name in compose.options("method")}


def table() -> str:
    """The rows, and below them what the types are that go up."""
    by_row: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    meanings: dict[str, str] = {}
    for name, method in methods().items():
        ups = going_up(method)
        meanings |= {_called(kind): _said(kind) for kind in ups}
        by_row[_kinds(ups, method), _all_down(method), _allowed(method)].append(name)
    order = sorted(by_row.items(), key=lambda row: (row[0][0] != NOTHING, row[0][1] != NOTHING, row[1]))
    lines = ["| method | up | down | to be allowed |", "|---|---|---|---|"]
    lines += [f"| {', '.join(f'`{name}`' for name in names)} | {' | '.join(row)} |" for row, names in order]
    lines += ["", "| goes up | what it is |", "|---|---|"]
    lines += [f"| `{name}` | {text} |" for name, text in sorted(meanings.items())]
    return "\n".join(lines)


def kinds() -> dict[str, dict[str, object]]:
    """The fields of every message between a server and a site, by kind."""
    modules = [importlib.import_module(f"flnl.sites.{one.name}") for one in pkgutil.iter_modules(sites.__path__)]
    return {
        name.lower(): value
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, dict) and "kind" in value
    }


def messages() -> str:
    """What crosses with every method and in an audit.

    Raises:
        KeyError: naming a message, or a field of a question, of which nothing is said, or that there is not.
    """
    found = kinds()
    asked = ["hello", *ASKED]
    lines = ["| to a site | has | tells of other sites |", "|---|---|---|"]
    lines += [f"| `{one}` | {_fields(found[one])} | {text} |" for one, text in _all(OF_OTHERS, asked).items()]
    lines += ["", "| from a site | has |", "|---|---|"]
    lines += [f"| `{one}` | {_fields(found[one])} |" for one in sorted(found.keys() - {*asked})]
    lines += ["", "| `question` of an audit has | tells of other sites |", "|---|---|"]
    by_field = {name: (names, text) for names, text in OF_OTHERS_IN_AUDITS.items() for name in names}
    told = dict.fromkeys(_all(by_field, [one.name for one in fields(Question)]).values())
    lines += [f"| {', '.join(f'`{name}`' for name in names)} | {text} |" for names, text in told]
    lines += ["", "| `step` | `told` is | |", "|---|---|---|"]
    lines += [
        f"| `{step}` | `{name_of(kind)}` ({_fields({one.name: one for one in fields(kind)})}) | {_said(kind)} |"
        for step, kind in ANSWERS.items()
    ]
    return "\n".join(lines)


def _all(said: Mapping[str, T], there: Iterable[str]) -> dict[str, T]:
    """What is said of each of those that there are, and of no other."""
    there = list(there)
    if other := said.keys() ^ {*there}:
        raise KeyError(*sorted(other))
    return {one: said[one] for one in there}


def _said(kind: type) -> str:
    return meaning(kind).removeprefix(": ")


def _fields(of: Mapping[str, object]) -> str:
    return ", ".join(f"`{name}`" for name in of if name != "kind") or NOTHING


def going_up(method: Method) -> list[type]:
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


def written(page: str, begin: str, table: str) -> str:
    """A page with today's table after ``begin``."""
    before, rest = page.split(begin)
    return f"{before}{begin}\n\n{table}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(written(written(PAGE.read_text(), BEGIN, table()), MESSAGES, messages()))
