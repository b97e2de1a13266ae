"""Nested values of tensors: dictionaries, lists, tuples, dataclasses and payloads, whose leaves are anything else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from flnl.core.onto import onto
from flnl.core.payload import Payload

Path = tuple[Any, ...]
"""Where a leaf is: keys, fields, positions and names of types, from the outermost on."""


@dataclass(frozen=True)
class Placeholder:
    """Stands for a tensor in a structure: the tensor's index, and its path in the value."""

    index: int
    path: Path


Filler = Callable[[Sequence[Tensor]], Any]


def tree_flatten(value: Any) -> tuple[Any, list[Tensor]]:
    """The value with placeholders instead of its tensors, and these in the order of their placeholders."""
    tensors: list[Tensor] = []

    def put(path: Path, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        tensors.append(leaf)
        return Placeholder(len(tensors) - 1, path)

    return rebuilt(value, put), tensors


def tree_map(of: Callable[[Tensor], Tensor], value: Any) -> Any:
    """The value with ``of(tensor)`` instead of each tensor."""
    return rebuilt(value, lambda _, leaf: of(leaf) if isinstance(leaf, Tensor) else leaf)


def tree_to(value: Any, device: torch.device) -> Any:
    """The value with its tensors on ``device``."""
    return value if device.type == "cpu" else tree_map(lambda tensor: onto(tensor, device), value)


def same_structure(one: Any, other: Any) -> bool:
    """Whether two values differ only in the numbers that their tensors hold."""
    same = True

    def compare(_: Path, leaves: Sequence[Any]) -> Any:
        nonlocal same
        first, second = leaves
        if isinstance(first, Tensor) and isinstance(second, Tensor):
            same = same and (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device)
        else:
            same = same and type(first) is type(second) and equal(first, second)
        return first

    merged([one, other], compare)
    return same


def filler(structure: Any) -> Filler | None:
    """What rebuilds a structure with tensors in place of its placeholders; None if it has none.

    Parts without a placeholder are not copied.
    """
    if isinstance(structure, Placeholder):
        index = structure.index
        return lambda tensors: tensors[index]
    apart = _apart(structure)
    if apart is None:
        return None
    _, values, build = apart
    fillers = [filler(value) for value in values]
    if not any(fillers):
        return None
    pairs = list(zip(values, fillers, strict=True))
    return lambda tensors: build([value if fill is None else fill(tensors) for value, fill in pairs])


def rebuilt(value: Any, leaf: Callable[[Path, Any], Any], path: Path = ()) -> Any:
    """The value with ``leaf(path, leaf)`` instead of each leaf; all containers are new."""
    apart = _apart(value)
    if apart is None:
        return leaf(path, value)
    names, values, build = apart
    return build([rebuilt(part, leaf, (*path, _name(name))) for name, part in zip(names, values, strict=True)])


def merged(values: Sequence[Any], leaf: Callable[[Path, Sequence[Any]], Any], path: Path = ()) -> Any:
    """Several values as one, with ``leaf(path, leaves)`` instead of their leaves; an object that all share is kept.

    Containers of another type, or with other names, are leaves.
    """
    first = values[0]
    if len(values) > 1 and all(value is first for value in values):
        return first
    if any(type(value) is not type(first) for value in values):
        return leaf(path, values)
    parts = [apart for value in values if (apart := _apart(value)) is not None]
    if not parts:
        return leaf(path, values)
    names, _, build = parts[0]
    by_name = [dict(zip(own, held, strict=True)) for own, held, _ in parts]
    if any(own.keys() != by_name[0].keys() for own in by_name):
        return leaf(path, values)
    if isinstance(first, Payload) and not all(map(first.alike, values)):
        return leaf(path, values)
    return build([merged([own[name] for own in by_name], leaf, (*path, _name(name))) for name in names])


def equal(one: Any, other: Any) -> bool:
    """Whether two leaves are equal; False for arrays and other objects without a single truth value."""
    try:
        return bool(one == other)
    except Exception:
        return False


def _apart(value: Any) -> tuple[Sequence[Any], Sequence[Any], Callable[[Sequence[Any]], Any]] | None:
    """A container's names and values, and what builds one like it from new values; None for a leaf."""
    if isinstance(value, Tensor | Placeholder):
        return None
    if isinstance(value, Payload):
        values = value.values()
        return [type(part) for part in values], values, value.with_values
    if is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in fields(value)]
        own = [getattr(value, name) for name in names]
        return names, own, lambda values: replace(value, **dict(zip(names, values, strict=True)))
    if isinstance(value, Mapping):
        keys = list(value)
        return keys, list(value.values()), lambda values: dict(zip(keys, values, strict=True))
    if type(value) in (list, tuple):
        return range(len(value)), value, type(value)
    return None


def _name(key: Any) -> Any:
    """A key as paths have it."""
    return key.__name__ if isinstance(key, type) else key
