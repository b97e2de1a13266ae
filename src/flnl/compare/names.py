"""Short names of rows: the keys in which they differ, as one would type them.

What differs only because something else does is left out: the parts of another method, the learning rate of another
protocol. A key that was typed is never taken for such a consequence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import combinations
from typing import Any

from omegaconf import OmegaConf

from flnl.compare.runs import Row
from flnl.config.identity import flatten
from flnl.config.registry import recorded_name
from flnl.config.resolvers import CONF

GROUPS = ("method", "dataset", "partition", "noise", "model", "protocol")
"""In the order in which a name tells them."""
BRINGS = {"model": ("dataset",), "protocol": ("dataset",)}
"""A data set names its own."""
ALWAYS = ("method", "dataset")
"""Told in every name where they differ."""
LONGEST = 40
"""Characters of a value; of a longer one the middle is left out."""


def names(rows: Sequence[Row]) -> list[str]:
    """A name for each row, all different; the method's where there is nothing to tell apart."""
    said = [_Said(row) for row in rows]
    differing = _in_order(
        k for k in {k for one in said for k in one.values} if len({o.values.get(k) for o in said}) > 1
    )
    own = [key for key in differing if not _repeats(said, key, differing)]
    kept = [key for key in own if _matters(said, key)]
    whole = [[key for key in kept if key in one.values] for one in said]
    short = [[key for key in keys if not _goes_without(said, one, key)] for one, keys in zip(said, whole, strict=True)]
    if not all(short) and "method" not in kept:  # one is as it comes, and needs a name
        whole, short = ([["method", *keys] for keys in found] for found in (whole, short))
    return _told_apart(said, short, whole, differing)


def _told_apart(
    said: Sequence[_Said], short: list[list[str]], whole: list[list[str]], differing: Sequence[str]
) -> list[str]:
    """The names that ``short`` keys make, with more of them where two would be the same."""
    while True:
        texts = [" ".join(_word(key, one.values[key]) for key in keys) for one, keys in zip(said, short, strict=True)]
        same = [i for i, text in enumerate(texts) if Counter(texts)[text] > 1]
        if not same:
            return texts
        alike = [i for i in same if texts[i] == texts[same[0]]]
        if any(short[i] != whole[i] for i in alike):
            for i in alike:
                short[i] = whole[i]
            continue
        more = [key for key in differing if len({said[i].values.get(key) for i in alike}) > 1]
        more = [key for key in more if any(key in said[i].values and key not in short[i] for i in alike)]
        if not more:
            return [f"{text} ({said[i].row.runs[0].folder})" if i in same else text for i, text in enumerate(texts)]
        for i in alike:
            own = more[0] in said[i].values and more[0] not in short[i]
            short[i] = whole[i] = [*short[i], *more[: int(own)]]


# ------------------------------------------------------------------------------------------------ what a row says


@dataclass(frozen=True)
class _Said:
    """The keys of a row with their values as text: what was chosen, ``group`` or ``method/slot``, and single values."""

    row: Row

    @cached_property
    def choices(self) -> dict[str, str]:
        """What is chosen in each group of the configuration."""
        groups = {group: self.row.config[group] for group in GROUPS if group in self.row.config}
        slots = {f"method/{slot}": node for slot, node in groups.get("method", {}).items() if slot in _slots()}
        return {key: self._choice(key, node) for key, node in (groups | slots).items()}

    def _choice(self, key: str, node: Any) -> str:
        if not isinstance(node, Mapping):
            return _text(node)
        if "name" in node:
            return str(node["name"])
        if "_target_" not in node:
            return _text(list(node))
        return self._typed_options.get(key) or _option(key, node)

    @cached_property
    def _typed_options(self) -> dict[str, str]:
        """What the words of the command chose, where there are such options."""
        words = (word.lstrip("+").split("=", 1) for run in self.row.runs for word in run.words if "=" in word)
        return {key: option for key, option in words if option in _options(key)}

    @cached_property
    def values(self) -> dict[str, str]:
        """Choices and single values."""
        own = {key.replace("/", ".") for key in self.choices}
        own |= {f"{path}.{leaf}" for path in own for leaf in ("_target_", "name")}
        return self.choices | {key: _text(value) for key, value in self.row.values.items() if key not in own}

    @cached_property
    def words(self) -> set[str]:
        """The keys that the command of one of its runs has typed."""
        return {word.lstrip("+~").split("=")[0].split("@")[0] for run in self.row.runs for word in run.words}

    def typed(self, key: str) -> bool:
        """Whether ``key`` was: itself, a mapping that holds it, or the protocol's word for it."""
        above = {key[:at] for at in range(len(key)) if key[at] == "."} - set(self.choices)
        if self.words & {key, *above}:
            return True
        leaf = key.rpartition(".")[2]
        protocol = any(word.startswith("protocol.") and word.rpartition(".")[2] == leaf for word in self.words)
        return protocol and key.count(".") <= 1 and self.of_the_protocol(key)

    def of_the_protocol(self, key: str) -> bool:
        """Whether the value is what the protocol says of it."""
        protocol, method = self.row.config.get("protocol", {}), self.row.config.get("method", {})
        leaf = key.rpartition(".")[2]
        sections = (protocol.get(method.get("like", method.get("name"))) or {}, protocol)
        found = next((section[leaf] for section in sections if leaf in section), None)
        return found is not None and _text(found) == self.values.get(key)


def _above(key: str) -> tuple[str, ...]:
    """The choices that bring ``key`` with them."""
    if key in BRINGS:
        return BRINGS[key]
    if "/" in key:
        return ("method",)
    first, *rest = key.split(".")
    if not rest or first not in GROUPS:
        return ()
    return (first, f"{first}/{rest[0]}") if len(rest) > 1 else (first,)


def _agree(one: _Said, other: _Said, keys: Iterable[str]) -> bool:
    return all(one.values.get(key) == other.values.get(key) for key in keys)


# ----------------------------------------------------------------------------------------------- which keys to tell


@dataclass(frozen=True)
class _Part:
    """What decides whether a value of one row matters beside another's."""

    value: str | None
    typed: bool
    brought_by: tuple[str | None, ...]  # what is chosen above it
    protocol: tuple[str | None, ...] | None  # and whose word it is, where it is the protocol's

    @classmethod
    def of(cls, one: _Said, key: str) -> _Part:
        """The part that ``key`` has in a row."""
        said = [one.values.get(other) for other in ("protocol", "method")] if one.of_the_protocol(key) else None
        above = tuple(one.values.get(other) for other in _above(key))
        return cls(one.values.get(key), one.typed(key), above, None if said is None else tuple(said))


def _matters(said: Sequence[_Said], key: str) -> bool:
    """Whether two of the rows differ in ``key`` for its own sake."""
    return any(
        one.value != other.value
        and (
            (one.typed or other.typed)
            or (
                one.brought_by == other.brought_by
                and (one.protocol is None or other.protocol is None or one.protocol == other.protocol)
            )
        )
        for one, other in combinations({_Part.of(one, key) for one in said}, 2)
    )


def _repeats(said: Sequence[_Said], key: str, others: Iterable[str]) -> bool:
    """Whether a value deep in a group is everywhere that of a key nearer to the root, as a sampler's fraction is."""
    have = [one for one in said if key in one.values]
    if key.count(".") < 2 or any(one.typed(key) for one in have):
        return False
    nearer = [other for other in others if other.count(".") < key.count(".")]
    return any(all(one.values.get(other) == one.values[key] for one in have) for other in nearer)


def _goes_without(said: Sequence[_Said], one: _Said, key: str) -> bool:
    """Whether ``one`` left alone a key that only a few others typed: it is told in their names."""
    if key in ALWAYS or not one.words or one.typed(key):
        return False
    have = [other for other in said if key in other.values]
    alone = [other for other in have if not other.typed(key)]
    alike = [other for other in alone if _agree(one, other, _above(key))]
    return len(alone) < len(have) <= 2 * len(alone) and all(_agree(one, other, [key]) for other in alike)


def _in_order(keys: Iterable[str]) -> list[str]:
    """Group by group, what is chosen first; keys outside the groups at the end."""

    def place(key: str) -> tuple[int, int, bool, str]:
        group = key.replace("/", ".").split(".")[0]
        rank = GROUPS.index(group) if group in GROUPS else len(GROUPS)
        return rank, key.count(".") + key.count("/"), "/" not in key, key

    return sorted(keys, key=place)


# ------------------------------------------------------------------------------------------------------------ words


def _word(key: str, text: str) -> str:
    if len(text) > LONGEST:
        half = (LONGEST - 3) // 2
        text = f"{text[:half]}...{text[-half:]}"
    return f"{key}={text}"


def _text(value: Any) -> str:
    """A value as it is typed."""
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
    """The files of a group by name, as they are written."""
    files = (CONF / group).glob("*.yaml")
    return {file.stem: OmegaConf.to_container(OmegaConf.load(file)) for file in sorted(files)}


def _option(group: str, node: Mapping[str, Any]) -> str:
    """The option that builds the same object, with the most values in common; the class where none does."""
    found = dict(flatten(node))
    close = {
        name: sum(found.get(key) == value for key, value in flatten(raw))
        for name, raw in _options(group).items()
        if isinstance(raw, Mapping) and recorded_name(str(raw.get("_target_"))) == recorded_name(str(node["_target_"]))
    }
    return max(close, key=close.__getitem__) if close else recorded_name(str(node["_target_"]))
