"""Joins the values of several clients into one: equal parts are kept once, others become tensors with a client axis.

This lets ``torch.func.vmap`` run parts that are written for one client on their states, draws and received values.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.onto import onto
from flnl.core.payload import Payload
from flnl.engine.stacked.errors import NotStackable
from flnl.engine.trees import Filler, Path, Placeholder, equal, filler, merged, rebuilt, tree_flatten, tree_map

T = TypeVar("T")


@dataclass(frozen=True)
class Joined:
    """Joined values of K clients: a structure with placeholders, and the tensors [K, ...] that they stand for."""

    structure: Any
    tensors: tuple[Tensor, ...]
    numbers: frozenset[Path] = frozenset()  # tensors that stand for numbers
    padded: frozenset[Path] = frozenset()  # tensors with a row per sample, padded to the largest client

    def next(self, structure: Any, tensors: Sequence[Tensor]) -> "Joined":
        """The same clients' values after a step."""
        return replace(self, structure=structure, tensors=tuple(tensors))

    def each(self, of: Callable[[Tensor], Tensor]) -> "Joined":
        """The same values with ``of(tensor)`` instead of each tensor."""
        return tree_map(of, self)  # type: ignore[no-any-return]

    def held(self) -> list[Tensor]:
        """Every tensor, also those shared by all clients, in an order that depends only on the structure."""
        return tree_flatten(self)[1]

    def of(self, k: int, count: int) -> Any:
        """The value of client ``k``, which has ``count`` samples; its tensors are copies."""

        def fill(place: Placeholder) -> Any:
            tensor = self.tensors[place.index][k]
            if place.path in self.numbers and tensor.dim() == 0:
                return tensor.item()
            return (tensor[:count] if place.path in self.padded else tensor).clone()

        return self.copied(fill)

    def filled(self, tensors: Sequence[Tensor]) -> Any:
        """The value with these ``tensors``, to be read only: parts without a tensor are not copied."""
        return self.structure if self._filler is None else self._filler(tensors)

    def copied(self, fill: Callable[[Placeholder], Any]) -> Any:
        """The value with ``fill(placeholder)`` for each of them; all containers are new."""
        return rebuilt(self.structure, lambda _, leaf: fill(leaf) if isinstance(leaf, Placeholder) else leaf)

    @cached_property
    def _filler(self) -> Filler | None:
        return filler(self.structure)


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

    def with_values(self, values: Iterable[Any]) -> "Unlike":
        """As of a payload; it lacks the same types."""
        return Unlike(*values, reasons=self.reasons)

    def alike(self, other: Payload) -> bool:
        """As of a payload; to read the other one raises for the same types and reasons, too."""
        return super().alike(other) and isinstance(other, Unlike) and other.reasons == self.reasons


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

    def put(tensor: Tensor, path: Path) -> Placeholder:
        tensors.append(tensor)
        return Placeholder(len(tensors) - 1, path)

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
        if not isinstance(first, np.ndarray) and all(equal(leaf, first) for leaf in leaves):
            return first
        kinds = ", ".join(dict.fromkeys(type(leaf).__name__ for leaf in leaves))
        raise NotStackable(f"clients differ in something that is neither tensor nor number ({_named(path)}: {kinds})")

    return Joined(merged(values, merge), tuple(tensors), frozenset(numbers), frozenset(padded))


def _named(path: Path) -> str:
    return ".".join(map(str, path)) or "itself"
