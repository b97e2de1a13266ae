"""What is wrong with a part: with its class, its keys and its values, and with the parts inside it."""

from __future__ import annotations

import inspect
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, fields, is_dataclass, replace
from typing import Any

from flnl.config.folders import CONF
from flnl.config.schema import Root
from flnl.config.slots import Slot, is_plain, slot_of, slots
from flnl.config.typed_values import NO_KEY, Fault, as_typed, field_types, missing_fault, suggestion, value_faults
from flnl.core.importing import imported

OF_HYDRA = ("_target_", "_partial_")
"""Keys of a part that Hydra reads. It knows more, but none that a part here could do with."""


def group_faults(group: str, node: Any) -> Iterator[Fault]:
    """What is wrong with what a group chose. An experiment may have set a key that only another choice has."""
    for key, reason in part_faults(group, node, slots().groups[group]):
        if reason.startswith(NO_KEY) and key.count(".") == 1:
            reason = f"{NO_KEY} (if an experiment sets it, ~{key} leaves it out){reason.removeprefix(NO_KEY)}"
        yield key, reason


def part_faults(key: str, node: Any, slot: Slot) -> Iterator[Fault]:
    """What is wrong with what stands in a slot."""
    from flnl.core.parts import Part  # imports torch

    if slot.may_be_empty and (node is None or node == {}):
        return
    if not isinstance(node, Mapping) or "_target_" not in node:
        yield key, f"={as_typed(node)}: {slot.wanted}"
        return
    kind = imported(node["_target_"])
    if isinstance(kind, str):
        yield f"{key}._target_", f"={as_typed(node['_target_'])}: {kind}"
        return
    if not slot.admits(kind):
        wanted = f", as it is no {' or '.join(one.__name__ for one in slot.kinds)}" if slot.kinds else ""
        yield f"{key}._target_", f"={as_typed(node['_target_'])}: cannot stand there{wanted}; {key} {slot.wanted}"
        return
    if Part in kind.__mro__ and not is_dataclass(kind):
        how = "the class has no fields to be set; decorate it with @dataclass(frozen=True)"
        yield f"{key}._target_", f"={as_typed(node['_target_'])}: {how}"
        return
    for name in (name for name in node if str(name).startswith("_") and name not in OF_HYDRA):
        yield f"{key}.{name}", " is not a key of a part"
    values = {k: v for k, v in node.items() if not str(k).startswith("_")}
    adds = [hint for hint in field_types(kind).values() if _among(hint, slot.adds)] if is_dataclass(kind) else []
    unfinished = node.get("_partial_", False)
    if unfinished is not bool(adds) and (is_dataclass(kind) or not isinstance(unfinished, bool)):
        right = "true: the run adds what is missing" if adds else "false, or left out"
        yield f"{key}._partial_", f"={as_typed(node.get('_partial_'))}: must be {right}"
    elif is_dataclass(kind):
        yield from field_faults(f"{key}.", values, kind, adds)
    else:
        yield from _unbound(key, values, kind, missing=not unfinished)
        for name, value in values.items():
            yield from _inner(f"{key}.{name}", value)


def _inner(key: str, node: Any) -> Iterator[Fault]:
    """What is wrong with the parts inside a value whose type nothing says."""
    if isinstance(node, Mapping):
        if "_target_" in node:
            yield from part_faults(key, node, Slot())
        else:
            for name, value in node.items():
                yield from _inner(f"{key}.{name}", value)
    elif isinstance(node, list):
        for i, value in enumerate(node):
            yield from _inner(f"{key}.{i}", value)


def _unbound(key: str, values: Mapping[str, Any], kind: type, *, missing: bool) -> Iterator[Fault]:
    """What is wrong with the keys of a class that does not annotate its fields; ``missing``: also what is not there."""
    try:
        parameters = inspect.signature(kind).parameters.values()
    except (TypeError, ValueError):
        return
    named = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    if not any(p.kind == p.VAR_KEYWORD for p in parameters):
        yield from ((f"{key}.{k}", f"{NO_KEY}{suggestion(k, named)}") for k in values if k not in named)
    needed = [p.name for p in parameters if missing and p.name in named and p.default is p.empty]
    yield from (missing_fault(f"{key}.{name}") for name in needed if name not in values)


def field_faults(prefix: str, node: Mapping[str, Any], schema: type, added: Collection[type] = ()) -> Iterator[Fault]:
    """What is wrong with keys and values, by the annotations of a dataclass.

    Fields of the types ``added`` may be missing.
    """
    yield from present_faults(prefix, node, schema)
    optional = {f.name for f in fields(schema) if f.default is not MISSING or f.default_factory is not MISSING}
    hints = field_types(schema)
    missing = (key for key, hint in hints.items() if key not in node and hint not in added and key not in optional)
    yield from (missing_fault(f"{prefix}{key}") for key in missing)


def present_faults(prefix: str, node: Mapping[str, Any], schema: type) -> Iterator[Fault]:
    """As ``field_faults``, for the fields that are there."""
    hints = field_types(schema)
    for key, value in node.items():
        name = f"{prefix}{key}"
        if key not in hints:
            yield name, f"{NO_KEY}{suggestion(str(key), list(hints))}"
        elif schema is Root and is_dataclass(hints[key]):
            if isinstance(value, Mapping):
                yield from field_faults(f"{name}.", value, hints[key])
            else:
                inner = ", ".join(f"{name}.{one}" for one in field_types(hints[key]))
                yield name, f"={as_typed(value)}: set one of {inner}"
        elif (slot := slot_of(hints[key])) is not None:
            group = name.replace(".", "/")
            yield from part_faults(name, value, replace(slot, choices=group) if (CONF / group).is_dir() else slot)
        elif isinstance(value, Mapping) and "_target_" in value and not is_plain(hints[key]):
            yield from part_faults(name, value, Slot())
        else:
            yield from value_faults(name, value, hints[key])


def _among(hint: Any, kinds: Collection[type]) -> bool:
    """Whether a type is one of these, or a class of one."""
    return any(one in getattr(hint, "__mro__", (hint,)) for one in kinds)
