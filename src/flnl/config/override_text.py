"""What the text of an override says: the key that it sets, its value, and the group of which it chooses a file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from flnl.config.folders import CONF


def key_of(override: str) -> str:
    """The key that an override sets, or the group of which it chooses a file, with its package if it names one.

    >>> key_of("+train.lr=0.1"), key_of("method/local=[fedprox]"), key_of("~noise.map")
    ('train.lr', 'method/local', 'noise.map')
    """
    return override.lstrip("+~").partition("=")[0]


def value_of(override: str) -> str:
    """The value of an override as typed; empty if it has none.

    >>> value_of("noise.path='a=b'")
    "'a=b'"
    """
    return override.partition("=")[2]


def dotted(override: str) -> str:
    """The dotted key that an override sets, without a package.

    >>> dotted("executor/inner=stacked")
    'executor.inner'
    """
    return without_package(key_of(override)).replace("/", ".")


def group_of(override: str, places: Sequence[Path] = (CONF,)) -> str | None:
    """The group of which an override chooses a file; None if it sets a value.

    Args:
        override: the override as typed.
        places: the folders that may have the group.

    >>> group_of("method/local@method.local=[fedprox]"), group_of("train.lr=0.1")
    ('method/local', None)
    """
    group = without_package(key_of(override))
    return group if group and any((place / group).is_dir() for place in places) else None


def choices_of(overrides: Iterable[str], places: Sequence[Path] = (CONF,)) -> tuple[str, ...]:
    """The overrides that choose files.

    Args:
        overrides: the overrides as typed.
        places: the folders that may have the groups.

    >>> choices_of(["method=fedavg", "train.lr=0.1", "noise@noise=none"])
    ('method=fedavg', 'noise@noise=none')
    """
    return tuple(override for override in overrides if group_of(override, places))


def without(overrides: Iterable[str], *keys: str) -> list[str]:
    """The overrides that set none of these keys.

    >>> without(["seed=1", "+resume=true"], "resume")
    ['seed=1']
    """
    return [override for override in overrides if key_of(override) not in keys]


def without_package(key: str) -> str:
    """A key or group without the package that it names."""
    return key.partition("@")[0]
