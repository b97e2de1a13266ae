"""A model as a mapping of tensors, and ``Payload``: values looked up by type.

Also: the size of a value when sent, and which entries of a model are learned.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

V = TypeVar("V")

CPU = torch.device("cpu")

Params = dict[str, Tensor]
"""A state_dict: parameters and buffers by name."""


def size_in_bytes(value: Any) -> int:
    """Size of a value when sent: tensors by their elements, numbers 8 bytes, booleans 1, strings their length.

    >>> size_in_bytes({"w": torch.zeros(3), "n": 5, "ok": True})
    21
    """
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if value is None:
        return 0
    if isinstance(value, bool):
        return 1
    if isinstance(value, int | float):
        return 8
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(size_in_bytes(v) for v in value.values())
    if is_dataclass(value):
        return sum(size_in_bytes(getattr(value, f.name)) for f in fields(value))
    if isinstance(value, Iterable):
        return sum(size_in_bytes(v) for v in value)
    raise TypeError(f"values of type {type(value).__name__} cannot be sent")


class Payload:
    """Values looked up by their exact type, at most one of each."""

    __slots__ = ("_values",)

    def __init__(self, *values: Any) -> None:
        self._values: dict[type, Any] = {}
        for value in values:
            if type(value) in self._values:
                raise ValueError(f"two values of type {type(value).__name__}; a payload holds one of each")
            self._values[type(value)] = value

    def get(self, kind: type[T]) -> T | None:
        """The value of this type, or None."""
        return self._values.get(kind)

    def one(self, kind: type[T]) -> T:
        """The value of this type.

        Raises:
            LookupError: if there is none; the message lists the types present.
        """
        try:
            value: T = self._values[kind]
        except KeyError:
            held = ", ".join(t.__name__ for t in self._values) or "nothing"
            raise LookupError(f"no {kind.__name__} here; this payload holds {held}") from None
        return value

    def including(self, *values: Any) -> Payload:
        """A payload with these values added; each replaces an earlier one of its type."""
        return Payload(*{**self._values, **{type(v): v for v in values}}.values())

    def values(self) -> list[Any]:
        """The values that it holds."""
        return [*self._values.values()]

    def with_values(self, values: Iterable[Any]) -> Payload:
        """A payload like this one with these values alone."""
        return Payload(*values)

    def alike(self, other: Payload) -> bool:
        """Whether the other one has values of the same types, in the same order."""
        return type(other) is type(self) and [*map(type, self.values())] == [*map(type, other.values())]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values.values())

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Payload({', '.join(map(repr, self))})"


def all_finite(params: Params) -> bool:
    """Whether no floating-point entry is NaN or infinite."""
    tensors = [p for p in params.values() if p.is_floating_point()]
    return not tensors or bool(are_finite(tensors))


def are_finite(tensors: Sequence[Tensor], dim: int | None = None) -> Tensor:
    """Whether all tensors hold only finite numbers, along a dimension or everywhere.

    A sum is finite only if all of its terms are, and takes a CPU a fraction of a look at each; where it is not, it may
    just have overflowed. A GPU would be waited for once more, so it looks at each.
    """
    if tensors[0].device.type == "cpu":
        sums = torch.stack([t.sum(dim).double() for t in tensors]).isfinite()
        if bool(sums.all()):
            return sums.all(0)
    return torch.stack([t.isfinite().all(dim) for t in tensors]).all(0)  # whoever reads it waits once


def is_running_statistic(name: str) -> bool:
    """Whether an entry of a state_dict is a normalisation layer's running mean or variance, which is not learned.

    >>> [is_running_statistic(name) for name in ("body.1.weight", "body.1.running_var")]
    [False, True]
    """
    return name.rpartition(".")[2] in ("running_mean", "running_var")


def is_learned(name: str, tensor: Tensor) -> bool:
    """Whether an entry of a model is a parameter: a float tensor that is no running statistic."""
    return tensor.is_floating_point() and not is_running_statistic(name)
