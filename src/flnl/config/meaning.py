"""What a key of the configuration means: its value, what it may be, and the comment beside it."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Interval, Le, Lt, MinLen

from flnl.config.comments import comments
from flnl.config.compose import load, resolved
from flnl.config.folders import CONF
from flnl.config.identity import flatten
from flnl.config.schema import STAGE_VALUES, Correct, Root
from flnl.config.short_keys import declared
from flnl.config.typed_values import field_types
from flnl.config.written import source
from flnl.core.importing import located
from flnl.core.training import Training


@dataclass(frozen=True)
class Meaning:
    """A key, as ``flnl explain`` tells of it."""

    key: str
    value: str  # as it is typed
    allowed: str  # what it may be, in words; empty where nothing says
    comment: str
    file: str  # the last file that sets its value
    source: str = ""  # the key at which that file sets it, where it is another
    stands_for: str = ""  # the part's key, of a short key


def meanings(key: str, overrides: Sequence[str] = ()) -> list[Meaning]:
    """What ``key``, or every key of a section, means in the configuration that ``overrides`` choose; empty if there is
    no such key.

    Raises:
        UserError: if the configuration cannot be composed.
    """
    cfg = load(overrides)
    plain = resolved(cfg)
    short = {f"method.{name}": target for name, target in declared(cfg).items()}
    said = comments(overrides)
    found = []
    for name, value in _leaves(plain, key):
        target = short.get(name, name)
        comment, file = said.get(target, ("", None))
        if (set_at := source(cfg, target)) != target:
            file = said.get(set_at, ("", file))[1]
        found.append(
            Meaning(
                name,
                written(value),
                allowed(_hint(plain, target)),
                comment,
                "" if file is None else _shown(file),
                source=set_at if set_at not in (target, name) else "",
                stands_for=target if target != name else "",
            )
        )
    return found


def _leaves(plain: Mapping[str, Any], key: str) -> Iterator[tuple[str, Any]]:
    """The keys at and below ``key`` but for those that Hydra reads; a list is one value."""
    node: Any = plain
    for part in key.split("."):
        if not isinstance(node, Mapping) or part not in node:
            return
        node = node[part]
    for name, value in flatten(node, key):
        if not name.rpartition(".")[2].startswith("_"):
            yield name, value


def _shown(file: Path) -> str:
    return str(file.relative_to(CONF.parent)) if file.is_relative_to(CONF) else str(file)


def written(value: Any) -> str:
    """A value as it is typed on a command line; numbers without the last digits of binary fractions.

    >>> written(0.44999999999999996), written(None), written([1, 2.5])
    ('0.45', 'null', '[1, 2.5]')
    """
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(float(f"{value:.15g}"))
    if isinstance(value, list):
        return f"[{', '.join(map(written, value))}]"
    return json.dumps(value, default=str)


# ----------------------------------------------------------------------------------------------------------- ranges


def _hint(plain: Mapping[str, Any], key: str) -> Any:
    """The annotation of the field that a key's value becomes; None where nothing says."""
    parts = key.split(".")
    kind: Any = Root
    hint: Any = None
    node: Any = plain
    for i, part in enumerate(parts):
        hint = field_types(kind).get(part) if is_dataclass(kind) and isinstance(kind, type) else None
        if parts[:2] == ["method", "stages"] and i == 3:
            hint = {**STAGE_VALUES, "train": Training, "correct": Correct}.get(part)
        node = node.get(part) if isinstance(node, Mapping) else None
        kind = located(node["_target_"]) if isinstance(node, Mapping) and "_target_" in node else hint
    return hint


def allowed(hint: Any) -> str:
    """What a value of this annotation may be, in a few words; empty where they would say nothing.

    >>> from flnl.core.ranges import PositiveCount, Share
    >>> allowed(Share), allowed(PositiveCount | None), allowed(Literal["drop", "stop"])
    ('a number from 0 to 1', 'a whole number, 1 or more, or null', 'drop or stop')
    """
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _number(arguments[0], arguments[1:]) or allowed(arguments[0])
    if origin is Literal:
        return _or([written(value) for value in arguments])
    if origin in (Union, types.UnionType):
        words = [allowed(one) for one in arguments if one is not type(None)]
        if not all(words):
            return ""
        return _or([*words, *(["null"] if type(None) in arguments else [])])
    if origin in (list, tuple) and arguments:
        inner = allowed(arguments[0])
        return f"a list; each {inner}" if inner else "a list"
    return {bool: "true or false", int: "a whole number", float: "a number", str: "text"}.get(hint, "")


_LARGEST = 2**63


def _number(kind: Any, bounds: Sequence[Any]) -> str:
    if kind not in (int, float):
        return "text" if kind is str and not any(isinstance(bound, MinLen) for bound in bounds) else ""
    limits: dict[str, float] = {}
    for bound in bounds:
        for name in ("ge", "gt", "le", "lt"):
            value = getattr(bound, name, None) if isinstance(bound, Interval | Ge | Gt | Le | Lt) else None
            if value is not None and value != _LARGEST:
                limits[name] = value
    what = "a whole number" if kind is int else "a number"
    if {"ge", "le"} <= limits.keys():
        return f"{what} from {limits['ge']:g} to {limits['le']:,.10g}"
    words = {"gt": "above {:g}", "ge": "{:g} or more", "le": "at most {:g}", "lt": "below {:g}"}
    told = [words[name].format(limits[name]) for name in ("gt", "ge", "lt", "le") if name in limits]
    return f"{what}{',' if told and told[0][0].isdigit() else ''} {', '.join(told)}".rstrip()


def _or(words: Sequence[str]) -> str:
    *first, last = words
    if not first:
        return last
    return f"{', '.join(first)}{',' if any(',' in word for word in words) else ''} or {last}"
