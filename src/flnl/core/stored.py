"""The names by which files know the classes of values that runs keep.

A name is given once, at the class, and never changes; the class may be renamed and may move to another module. Files
can bring back only classes that carry such a name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")

Fields = Mapping[str, Any]
Upgrade = Callable[[Fields], Fields]

_CLASSES: dict[str, type] = {}
_NAMES: dict[type, str] = {}
_UPGRADES: dict[type, Upgrade] = {}


def stored(name: str, upgrade: Upgrade | None = None) -> Callable[[type[T]], type[T]]:
    """Let files keep values of the decorated dataclass under ``name``.

    Args:
        name: the stored name, which never changes.
        upgrade: today's fields from those that a file has, which an earlier version may have written.

    Raises:
        TypeError: if another class has the name already.
    """

    def register(kind: type[T]) -> type[T]:
        earlier = _CLASSES.get(name)
        if earlier is not None and earlier.__qualname__ != kind.__qualname__:
            raise TypeError(f"{kind.__qualname__} cannot be stored as {name}: {earlier.__qualname__} is")
        _CLASSES[name], _NAMES[kind] = kind, name
        if upgrade is not None:
            _UPGRADES[kind] = upgrade
        return kind

    return register


def name_of(kind: type) -> str:
    """The name under which files keep values of ``kind``.

    Raises:
        TypeError: if it has none.
    """
    if kind not in _NAMES:
        raise TypeError(f"{kind.__qualname__} has no stored name; decorate it with @stored({kind.__name__!r})")
    return _NAMES[kind]


def restore(name: str, fields: Fields) -> Any:
    """The value that a file has under a stored name, from its fields.

    Raises:
        ValueError: if no module that has been imported stores such a class.
        TypeError: if the fields are not those of the class.
    """
    kind = class_of(name)
    upgrade = _UPGRADES.get(kind)
    return kind(**(fields if upgrade is None else upgrade(fields)))


def class_of(name: str) -> type:
    """The dataclass that files know by ``name``, or by ``module:name`` as they did at first.

    Raises:
        ValueError: if no module that has been imported stores such a class.
    """
    kind = _CLASSES.get(name.rpartition(":")[2])
    if kind is None or not is_dataclass(kind):
        raise ValueError(f"it holds a {name!r}, which no part of this run stores")
    return kind
