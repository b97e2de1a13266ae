"""Joins the values of several clients into one: equal parts are kept once, others become tensors with a client axis.

This lets ``torch.func.vmap`` run parts that are written for one client on their states, draws and received values.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.onto import onto
from flnl.core.payload import Payload
from flnl.engine.stacked.errors import NotStackable

T = TypeVar("T")

Path = tuple[Any, ...]


@dataclass(frozen=True)
class Hole:
    """Placeholder of a tensor in a form: the tensor's index, and its path in the value."""

    index: int
    path: Path


@dataclass(frozen=True)
class Joined:
    """Joined values of K clients: a form with holes, and the tensors [K, ...] that fill them."""

    form: Any
    tensors: tuple[Tensor, ...]
    numbers: frozenset[Path] = frozenset()  # tensors that stand for numbers
    padded: frozenset[Path] = frozenset()  # tensors with a row per sample, padded to the largest client

    def next(self, form: Any, tensors: Sequence[Tensor]) -> "Joined":
        """The same clients' values after a step."""
        return replace(self, form=form, tensors=tuple(tensors))

    def each(self, of: Callable[[Tensor], Tensor]) -> "Joined":
        """The same values with ``of(tensor)`` instead of each tensor."""
        return mapped(self, of)  # type: ignore[no-any-return]

    def held(self) -> list[Tensor]:
        """Every tensor, also those shared by all clients, in an order that depends only on the structure."""
        return flattened(self)[1]

    def of(self, k: int, count: int) -> Any:
        """The value of client ``k``, which has ``count`` samples; its tensors are copies."""

        def fill(hole: Hole) -> Any:
            tensor = self.tensors[hole.index][k]
            if hole.path in self.numbers and tensor.dim() == 0:
                return tensor.item()
            return (tensor[:count] if hole.path in self.padded else tensor).clone()

        return self.copied(fill)

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """The value with ``tensors`` in its holes, to be read only: parts without a hole are not copied."""
        return self.form if self._filler is None else self._filler(tensors)

    def copied(self, fill: Callable[[Hole], Any]) -> Any:
        """The value with ``fill(hole)`` in each hole; all containers are new."""
        return _rebuilt(self.form, lambda _, leaf: fill(leaf) if isinstance(leaf, Hole) else leaf, ())

    @cached_property
    def _filler(self) -> "Filler | None":
        return _filler(self.form)


class Unlike(Payload):
    """A payload of which some types cannot be joined over clients: to read one of them raises ``NotStackable``."""

    __slots__ = ("reasons",)

    def __init__(self, *values: Any, reasons: Mapping[type, str]) -> None:
        """``reasons``: why values of a type cannot be joined; a reason for ``object`` is one for all types."""
        super().__init__(*values)
        self.reasons = reasons

    def _refuse(self, kind: type) -> None:
        reason = self.reasons.get(kind, self.reasons.get(object))
        if reason is not None:
            raise NotStackable(reason)

    def get(self, kind: type[T]) -> T | None:
        """As of a payload, of a type that can be joined."""
        self._refuse(kind)
        return super().get(kind)

    def one(self, kind: type[T]) -> T:
        """As of a payload, of a type that can be joined."""
        self._refuse(kind)
        return super().one(kind)

    def __iter__(self) -> Iterator[Any]:
        for kind in self.reasons:
            self._refuse(kind)
        return super().__iter__()

    @property
    def joined(self) -> list[Any]:
        """The values that can be joined."""
        return list(super().__iter__())


def without_unlike(payloads: Sequence[Payload], joins: Callable[[Sequence[Any]], object]) -> list[Payload]:
    """The payloads of several clients, without the types that not all of them have or that cannot be joined.

    ``joins`` joins one value of each client, or raises ``NotStackable``. The payloads themselves if they all can be.
    """
    kinds = dict.fromkeys(type(value) for payload in payloads for value in payload)
    reasons: dict[type, str] = {}
    for kind in kinds:
        values = [payload.get(kind) for payload in payloads]
        if any(value is None for value in values):
            reasons[kind] = f"some clients have a {kind.__name__} and others have none"
            continue
        try:
            joins(values)
        except NotStackable as refusal:
            reasons[kind] = f"of {kind.__name__}, {refusal}"
    there = [kind for kind in kinds if kind not in reasons]
    return [Unlike(*map(payload.one, there), reasons=reasons) for payload in payloads] if reasons else list(payloads)


def join(values: Sequence[Any], dtype: torch.dtype, device: torch.device, counts: Sequence[int]) -> Joined:
    """Join values of clients with ``counts`` samples on ``device``; numbers that differ become tensors of ``dtype``.

    For a single client every float becomes a tensor, since it may change from step to step.

    Raises:
        NotStackable: if the values differ in anything but numbers and tensors.
    """
    tensors: list[Tensor] = []
    numbers: set[Path] = set()
    padded: set[Path] = set()

    def put(tensor: Tensor, path: Path) -> Hole:
        tensors.append(tensor)
        return Hole(len(tensors) - 1, path)

    def merge(path: Path, leaves: Sequence[Any]) -> Any:
        first = leaves[0]
        if isinstance(first, Tensor) and all(isinstance(leaf, Tensor) for leaf in leaves):
            rows = [leaf.shape[:1] for leaf in leaves]
            if len(set(rows)) > 1 and rows == [(count,) for count in counts]:
                padded.add(path)
                most = max(counts)
                leaves = [F.pad(t, [0, 0] * (t.dim() - 1) + [0, most - len(t)]) for t in leaves]
            if len({leaf.shape for leaf in leaves}) > 1:
                raise NotStackable(f"tensors of a client differ in shape ({_named(path)})")
            if len({leaf.device for leaf in leaves}) > 1:  # some from this round, some from storage
                leaves = [onto(leaf, device) for leaf in leaves]
            return put(onto(torch.stack(list(leaves)), device), path)
        if isinstance(first, bool | int | float) and all(type(leaf) is type(first) for leaf in leaves):
            alone = len(leaves) == 1 and isinstance(first, float)
            if not alone and all(leaf == first for leaf in leaves):
                return first
            numbers.add(path)
            kind = dtype if isinstance(first, float) else torch.bool if isinstance(first, bool) else torch.int64
            return put(onto(torch.tensor(leaves, dtype=kind), device), path)
        if not isinstance(first, np.ndarray) and all(_equal(leaf, first) for leaf in leaves):
            return first
        kinds = ", ".join(dict.fromkeys(type(leaf).__name__ for leaf in leaves))
        raise NotStackable(f"clients differ in something that is neither tensor nor number ({_named(path)}: {kinds})")

    form = _walk(values, merge, ())
    return Joined(form, tuple(tensors), frozenset(numbers), frozenset(padded))


def flattened(value: Any) -> tuple[Any, list[Tensor]]:
    """The form of one value and its tensors, in the order of its holes."""
    tensors: list[Tensor] = []

    def put(path: Path, leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        tensors.append(leaf)
        return Hole(len(tensors) - 1, path)

    return _rebuilt(value, put, ()), tensors


def mapped(value: Any, of: Callable[[Tensor], Tensor]) -> Any:
    """The value with ``of(tensor)`` instead of each tensor."""
    return _rebuilt(value, lambda _, leaf: of(leaf) if isinstance(leaf, Tensor) else leaf, ())


def on_device(value: Any, device: torch.device) -> Any:
    """The value with its tensors on ``device``."""
    return value if device.type == "cpu" else mapped(value, lambda tensor: onto(tensor, device))


def alike(one: Any, other: Any) -> bool:
    """Whether two values differ only in the values of their tensors."""
    same = True

    def compare(_: Path, leaves: Sequence[Any]) -> Any:
        nonlocal same
        first, second = leaves
        if isinstance(first, Tensor) and isinstance(second, Tensor):
            same = same and (first.shape, first.dtype, first.device) == (second.shape, second.dtype, second.device)
        else:
            same = same and type(first) is type(second) and _equal(first, second)
        return first

    _walk([one, other], compare, ())
    return same


Filler = Callable[[Sequence[Tensor]], Any]


def _filler(form: Any) -> Filler | None:
    """What rebuilds ``form`` with tensors in its holes; None if it has none."""
    if isinstance(form, Hole):
        index = form.index
        return lambda tensors: tensors[index]
    apart = _apart(form)
    if apart is None:
        return None
    _, values, build = apart
    fillers = [_filler(value) for value in values]
    if not any(fillers):
        return None
    pairs = list(zip(values, fillers, strict=True))
    return lambda tensors: build([value if fill is None else fill(tensors) for value, fill in pairs])


def _equal(one: Any, other: Any) -> bool:
    try:
        return bool(one == other)
    except Exception:  # arrays and other objects without a single truth value
        return False


def _rebuilt(value: Any, leaf: Callable[[Path, Any], Any], path: Path) -> Any:
    """``_walk`` of one value, whose containers are always rebuilt."""
    apart = None if isinstance(value, Tensor | Hole) else _apart(value)
    if apart is None:
        return leaf(path, value)
    names, values, build = apart
    return build([_rebuilt(part, leaf, (*path, name)) for name, part in zip(names, values, strict=True)])


def _apart(value: Any) -> tuple[list[Any], list[Any], Callable[[Sequence[Any]], Any]] | None:
    """A container's names and values, and what builds one like it from new values; None for another object."""
    kind = type(value)
    if kind is Unlike:
        joined, reasons = value.joined, value.reasons
        return [type(part).__name__ for part in joined], joined, lambda values: Unlike(*values, reasons=reasons)
    if kind is Payload:
        return [type(part).__name__ for part in value], list(value), lambda values: Payload(*values)
    if is_dataclass(value) and not isinstance(value, type):
        names = [f.name for f in fields(value)]
        own = [getattr(value, name) for name in names]
        return names, own, lambda values: replace(value, **dict(zip(names, values, strict=True)))
    if isinstance(value, Mapping):
        keys = list(value)
        return keys, list(value.values()), lambda values: dict(zip(keys, values, strict=True))
    if kind in (list, tuple):
        return list(range(len(value))), list(value), kind
    return None


def _walk(values: Sequence[Any], leaf: Callable[[Path, Sequence[Any]], Any], path: Path) -> Any:
    """Rebuild the values' containers with ``leaf(path, leaves)`` in place of each leaf; keep objects that all share."""
    first = values[0]
    if len(values) > 1 and all(value is first for value in values):
        return first
    if any(type(value) is not type(first) for value in values):
        return leaf(path, values)
    if type(first) is Payload:
        kinds = [type(value) for value in first]
        if any([type(value) for value in payload] != kinds for payload in values):
            return leaf(path, values)
        return Payload(*(_walk([p.one(kind) for p in values], leaf, (*path, kind.__name__)) for kind in kinds))
    if type(first) is Unlike:
        if any(payload.reasons != first.reasons for payload in values):
            return leaf(path, values)
        each = zip(*(payload.joined for payload in values), strict=True)
        return Unlike(*(_walk(v, leaf, (*path, type(v[0]).__name__)) for v in each), reasons=first.reasons)
    if is_dataclass(first) and not isinstance(first, type | Hole):
        walked = {f.name: _walk([getattr(v, f.name) for v in values], leaf, (*path, f.name)) for f in fields(first)}
        return replace(first, **walked)
    if isinstance(first, Mapping):
        if any(value.keys() != first.keys() for value in values):
            return leaf(path, values)
        return {key: _walk([value[key] for value in values], leaf, (*path, key)) for key in first}
    if isinstance(first, list | tuple) and type(first) in (list, tuple):
        if any(len(value) != len(first) for value in values):
            return leaf(path, values)
        return type(first)(_walk([value[i] for value in values], leaf, (*path, i)) for i in range(len(first)))
    return leaf(path, values)


def _named(path: Path) -> str:
    return ".".join(map(str, path)) or "itself"
