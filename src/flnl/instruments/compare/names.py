"""Short names of rows: the keys in which they differ, as overrides.

A key that differs only as a consequence of another is omitted: the parts of another method, the learning rate of
another protocol. A key that the user has set is never regarded as a consequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from typing import Any

from omegaconf import OmegaConf

from flnl.config.folders import CONF
from flnl.config.groups import SEVERAL, bringing
from flnl.config.identity import flatten
from flnl.config.override_text import key_of, value_of, without_package
from flnl.config.registry import recorded_name
from flnl.instruments.compare.runs import Row

GROUPS = ("method", "dataset", "partition", "noise", "model", "protocol")
"""The groups, in the order in which a name lists them."""
BRINGS = {"model": ("dataset",), "protocol": ("dataset",)}
"""Groups whose default another group chooses: a data set names its model and protocol."""
ALWAYS = ("method", "dataset")
"""Keys that every name includes if rows differ in them."""
LONGEST = 40
"""Maximum number of characters of a value; the middle of longer ones is omitted."""


def names(rows: Sequence[Row]) -> list[str]:
    """A unique name for each row; the method's name if the rows do not differ."""
    settings = [Settings(row) for row in rows]
    differing = _differing(settings)
    kept = _independent(settings, differing)
    full = [[key for key in kept if key in one.values] for one in settings]
    short = [[key for key in keys if not _omits(settings, one, key)] for one, keys in zip(settings, full, strict=True)]
    if not all(short) and "method" not in kept:  # a row without keys needs a name, too
        full, short = ([["method", *keys] for keys in lists] for lists in (full, short))
    return _unique(settings, short, full, differing)


def differing_keys(settings: Sequence[Settings]) -> list[str]:
    """The keys in which rows differ other than as a consequence of other keys, in the order of a name."""
    return _independent(settings, _differing(settings))


def _differing(settings: Sequence[Settings]) -> list[str]:
    return _in_order(
        k for k in {k for one in settings for k in one.values} if len({o.values.get(k) for o in settings}) > 1
    )


def _independent(settings: Sequence[Settings], differing: Sequence[str]) -> list[str]:
    independent = [key for key in differing if not _repeats(settings, key, differing)]
    return [key for key in independent if _matters(settings, key)]


def _unique(
    settings: Sequence[Settings], short: list[list[str]], full: list[list[str]], differing: Sequence[str]
) -> list[str]:
    """Names from the keys ``short``; where two names would be equal, more keys are added."""
    while True:
        texts = [
            " ".join(override(key, one.values[key]) for key in keys) for one, keys in zip(settings, short, strict=True)
        ]
        same = [i for i, text in enumerate(texts) if Counter(texts)[text] > 1]
        if not same:
            return texts
        alike = [i for i in same if texts[i] == texts[same[0]]]
        if any(short[i] != full[i] for i in alike):
            for i in alike:
                short[i] = full[i]
            continue
        more = [key for key in differing if len({settings[i].values.get(key) for i in alike}) > 1]
        more = [key for key in more if any(key in settings[i].values and key not in short[i] for i in alike)]
        if not more:
            return [f"{text} ({settings[i].row.runs[0].folder})" if i in same else text for i, text in enumerate(texts)]
        for i in alike:
            new = more[0] in settings[i].values and more[0] not in short[i]
            short[i] = full[i] = [*short[i], *more[: int(new)]]


# ------------------------------------------------------------------------------------------------------- settings


@dataclass(frozen=True)
class Settings:
    """A row's keys with their values as text: choices (``group`` or ``method/slot``) and single values."""

    row: Row

    @cached_property
    def choices(self) -> dict[str, str]:
        """The chosen option of each group."""
        groups = {group: self.row.config[group] for group in GROUPS if group in self.row.config}
        slots = {f"method/{slot}": node for slot, node in groups.get("method", {}).items() if slot in _slots()}
        return {key: self._choice(key, node) for key, node in (groups | slots).items()}

    def _choice(self, key: str, node: Any) -> str:
        if not isinstance(node, Mapping):
            return _text(node)
        if "name" in node:
            return str(node["name"])
        if "_target_" not in node:
            return _text([bringing(key, name) or name for name in node] if key in SEVERAL else list(node))
        return self._typed_options.get(key) or _option(key, node)

    @cached_property
    def _typed_options(self) -> dict[str, str]:
        """The options that the overrides of the command have chosen."""
        typed = ((key_of(one), value_of(one)) for run in self.row.runs for one in run.overrides)
        return {key: option for key, option in typed if option in _options(key)}

    @cached_property
    def values(self) -> dict[str, str]:
        """Choices and single values."""
        covered = {key.replace("/", ".") for key in self.choices}
        covered |= {f"{path}.{leaf}" for path in covered for leaf in ("_target_", "name")}
        return self.choices | {key: _text(value) for key, value in self.row.values.items() if key not in covered}

    @cached_property
    def typed_keys(self) -> set[str]:
        """The keys that the commands of its runs have set."""
        return {without_package(key_of(one)) for run in self.row.runs for one in run.overrides}

    def typed(self, key: str) -> bool:
        """Whether the user has set ``key``: directly, in a mapping, or by the protocol's key for it."""
        above = {key[:at] for at in range(len(key)) if key[at] == "."} - set(self.choices)
        if self.typed_keys & {key, *above}:
            return True
        leaf = key.rpartition(".")[2]
        protocol = any(one.startswith("protocol.") and one.rpartition(".")[2] == leaf for one in self.typed_keys)
        return protocol and key.count(".") <= 1 and self.of_the_protocol(key)

    def of_the_protocol(self, key: str) -> bool:
        """Whether the value of ``key`` is the one that the protocol sets."""
        protocol, method = self.row.config.get("protocol", {}), self.row.config.get("method", {})
        leaf = key.rpartition(".")[2]
        sections = (protocol.get(method.get("like", method.get("name"))) or {}, protocol)
        value = next((section[leaf] for section in sections if leaf in section), None)
        return value is not None and _text(value) == self.values.get(key)


def _above(key: str) -> tuple[str, ...]:
    """The choices that determine ``key``."""
    if key in BRINGS:
        return BRINGS[key]
    if "/" in key:
        return ("method",)
    first, *rest = key.split(".")
    if not rest or first not in GROUPS:
        return ()
    return (first, f"{first}/{rest[0]}") if len(rest) > 1 else (first,)


def _agree(one: Settings, other: Settings, keys: Iterable[str]) -> bool:
    return all(one.values.get(key) == other.values.get(key) for key in keys)


# -------------------------------------------------------------------------------------------------- choice of keys


@dataclass(frozen=True)
class _Part:
    """What decides whether a difference between two rows in a key is relevant."""

    value: str | None
    typed: bool
    brought_by: tuple[str | None, ...]  # the choices that determine the key
    protocol: tuple[str | None, ...] | None  # protocol and method, if the protocol sets the value

    @classmethod
    def of(cls, one: Settings, key: str) -> _Part:
        """The role of ``key`` in a row."""
        protocol = [one.values.get(other) for other in ("protocol", "method")] if one.of_the_protocol(key) else None
        above = tuple(one.values.get(other) for other in _above(key))
        return cls(one.values.get(key), one.typed(key), above, None if protocol is None else tuple(protocol))


def _matters(settings: Sequence[Settings], key: str) -> bool:
    """Whether two of the rows differ in ``key`` other than as a consequence of other keys."""
    return any(
        one.value != other.value
        and (
            (one.typed or other.typed)
            or (
                one.brought_by == other.brought_by
                and (one.protocol is None or other.protocol is None or one.protocol == other.protocol)
            )
        )
        for one, other in combinations({_Part.of(one, key) for one in settings}, 2)
    )


def _repeats(settings: Sequence[Settings], key: str, others: Iterable[str]) -> bool:
    """Whether a nested value always equals that of a key nearer to the root, as a sampler's fraction does."""
    have = [one for one in settings if key in one.values]
    if key.count(".") < 2 or any(one.typed(key) for one in have):
        return False
    nearer = [other for other in others if other.count(".") < key.count(".")]
    return any(all(one.values.get(other) == one.values[key] for one in have) for other in nearer)


def _omits(settings: Sequence[Settings], one: Settings, key: str) -> bool:
    """Whether the name of ``one`` omits ``key``: it has the default, and only a few other rows have set the key."""
    if key in ALWAYS or not one.typed_keys or one.typed(key):
        return False
    have = [other for other in settings if key in other.values]
    alone = [other for other in have if not other.typed(key)]
    alike = [other for other in alone if _agree(one, other, _above(key))]
    return len(alone) < len(have) <= 2 * len(alone) and all(_agree(one, other, [key]) for other in alike)


def _in_order(keys: Iterable[str]) -> list[str]:
    """Sort by group, choices first; keys outside the groups come last."""

    def place(key: str) -> tuple[int, int, bool, str]:
        group = key.replace("/", ".").split(".")[0]
        rank = GROUPS.index(group) if group in GROUPS else len(GROUPS)
        return rank, key.count(".") + key.count("/"), "/" not in key, key

    return sorted(keys, key=place)


# -------------------------------------------------------------------------------------------------------- overrides


def override(key: str, text: str) -> str:
    """A key with its value, whose middle is omitted if it is long."""
    if len(text) > LONGEST:
        half = (LONGEST - 3) // 2
        text = f"{text[:half]}...{text[-half:]}"
    return f"{key}={text}"


def _text(value: Any) -> str:
    """A value as in an override."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


@cache
def _slots() -> tuple[str, ...]:
    return tuple(sorted(path.name for path in (CONF / "method").iterdir() if path.is_dir() and path.name != "parts"))


@cache
def _options(group: str) -> Mapping[str, Any]:
    """The files of a group, unresolved, by option."""
    files = (CONF / group).glob("*.yaml")
    return {file.stem: OmegaConf.to_container(OmegaConf.load(file)) for file in sorted(files)}


def _option(group: str, node: Mapping[str, Any]) -> str:
    """The option that builds the same class with the most values in common; the name of the class if there is none."""
    values = dict(flatten(node))
    close = {
        name: sum(values.get(key) == value for key, value in flatten(raw))
        for name, raw in _options(group).items()
        if isinstance(raw, Mapping) and recorded_name(str(raw.get("_target_"))) == recorded_name(str(node["_target_"]))
    }
    return max(close, key=close.__getitem__) if close else recorded_name(str(node["_target_"]))
