"""Stored names: the names under which files store classes of values.

A class declares its stored name once, and the name never changes; the class may be renamed or moved to another module.
Files can restore only classes with a stored name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, is_dataclass
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

Fields = Mapping[str, Any]
Upgrade = Callable[[Fields], Fields]

_CLASSES: dict[str, type] = {}
_NAMES: dict[type, str] = {}
_UPGRADES: dict[type, Upgrade] = {}


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def stored(name: str, upgrade: Upgrade | None = None) -> Callable[[type[T]], type[T]]:
    """Class decorator: the class is a frozen dataclass, and files store its values under ``name``.

    Args:
        name: the stored name, which never changes.
        upgrade: converts the fields in a file, possibly of an earlier version, to the current fields.

    Raises:
        TypeError: if another class already has this name.
    """

    def register(kind: type[T]) -> type[T]:
        if "__dataclass_fields__" not in vars(kind):
            kind = dataclass(frozen=True)(kind)
        earlier = _CLASSES.get(name)
        if earlier is not None and _path(earlier) != _path(kind):  # else the module is loaded again
            raise TypeError(f"{_path(kind)} cannot be stored as {name}: {_path(earlier)} has this name")
        _CLASSES[name], _NAMES[kind] = kind, name
        if upgrade is not None:
            _UPGRADES[kind] = upgrade
        return kind

    return register


def _path(kind: type) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


def name_of(kind: type) -> str:
    """The stored name of ``kind``.

    Raises:
        TypeError: if it has none.
    """
    if kind not in _NAMES:
        raise TypeError(f"{kind.__qualname__} has no stored name; decorate it with @stored({kind.__name__!r})")
    return _NAMES[kind]


def restore(name: str, fields: Fields) -> Any:
    """Restore a value from its stored name and fields.

    Raises:
        ValueError: if no imported module stores a class under this name.
        TypeError: if the fields do not match the class.
    """
    kind = class_of(name)
    upgrade = _UPGRADES.get(kind)
    return kind(**(fields if upgrade is None else upgrade(fields)))


def class_of(name: str) -> type:
    """The dataclass with the stored name ``name``; early files have ``module:name`` instead.

    Raises:
        ValueError: if no imported module stores a class under this name.
    """
    kind = _CLASSES.get(name.rpartition(":")[2])
    if kind is None or not is_dataclass(kind):
        raise ValueError(f"it holds a {name!r}, which no part of this run stores")
    return kind


def classes() -> tuple[type, ...]:
    """The classes with a stored name that are imported."""
    return tuple(_NAMES)
