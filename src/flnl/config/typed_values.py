"""What is wrong with a value, by the annotation of the field that it will become."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from typing import Any, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError

from flnl.console.suggestions import did_you_mean
from flnl.core.errors import shortened

Fault = tuple[str, str]
"""A key, and what is wrong with it."""
INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*)")
FLOAT = re.compile(INTEGER.pattern + r"(\.[0-9]+)?(e[+-]?[0-9]{1,2})?", re.IGNORECASE)
"""Texts that Hydra reads as numbers; one with a leading zero is a text to it."""
NO_KEY = " is not a key"
"""How that begins where there is no such key."""


def faults_among(schema: type, values: Mapping[str, Any]) -> str:
    """What is wrong with the types of ``values`` as fields of a dataclass, in one line; empty where nothing is."""
    hints = field_types(schema)
    return "; ".join(
        f"{key}{fault}" for name, value in values.items() for key, fault in value_faults(name, value, hints[name])
    )


def missing_fault(key: str) -> Fault:
    """What is wrong where a key that has no default was deleted, or a file lacks it."""
    return key, f" is missing: write {key}=... in place of ~{key}, or set it in the file that lacks it"


@cache
def field_types(schema: type) -> dict[str, Any]:
    """The fields that a dataclass is built from, with their annotations."""
    hints = get_type_hints(schema, include_extras=True)
    return {f.name: hints[f.name] for f in fields(schema) if f.init and not f.name.startswith("_")}


def value_faults(key: str, value: Any, hint: Any) -> Iterator[Fault]:
    """What is wrong with a value. Strictly: the part is built from the value as it stands, unconverted."""
    try:
        _adapter(hint).validate_python(value, strict=True)
    except ValidationError as error:
        messages = (re.sub(r"^\w+ should", "must", str(e["msg"]).removeprefix("Value error, ")) for e in error.errors())
        wanted = " or ".join(dict.fromkeys(messages)) + (_as_text(key, error) or _as_number(error))
        place = ".".join(str(part) for part in error.errors()[0]["loc"] if isinstance(part, int))
        yield key, f"{f'[{place}]' if place else ''}={as_typed(value)}: {wanted}"


def _as_text(key: str, error: ValidationError) -> str:
    """How to type a number, true or false where a text is wanted; empty where that is not the fault."""
    for one in error.errors():
        if one["type"] == "string_type" and isinstance(one["input"], bool | int | float):
            quoted = f'"{str(one["input"]).lower()}"'
            return (
                f"; as text, it has quotes within quotes: '{key}={f'[{quoted}]' if one['loc'][:1] == (0,) else quoted}'"
            )
    return ""


def _as_number(error: ValidationError) -> str:
    """That a number was typed as text; empty where that is not the fault."""
    for one in error.errors():
        number = {"float_type": FLOAT, "int_type": INTEGER}.get(one["type"])
        if number is not None and isinstance(text := one["input"], str) and number.fullmatch(text):
            return f"; {text!r} is text: write it as a number, without quotes"
    return ""


@cache
def _adapter(hint: Any) -> TypeAdapter[Any]:
    return TypeAdapter(hint, config=ConfigDict(arbitrary_types_allowed=True, allow_inf_nan=False))


def as_typed(value: Any) -> str:
    """A value as it is typed, or as much of it as a line can hold."""
    return "null" if value is None else shortened(str(value))


def suggestion(word: str, known: Sequence[str]) -> str:
    """What somebody may have meant who typed ``word``, or what there is; it goes behind what is wrong."""
    return f"; {did_you_mean(word, known, 'there are ' + ', '.join(sorted(known)))}"
