"""Whether what a site reports can be worked with: shapes, finite numbers, counts of samples that it has (ADR 14)."""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from flnl.core.payload import Params
from flnl.core.reported import MayBeInfinite, OfModel, OfSamples, Shaped
from flnl.core.stored import name_of
from flnl.sites.wire import WireError

BOUNDS: Mapping[str, Any] = {
    "ge": lambda value, bound: value >= bound,
    "gt": lambda value, bound: value > bound,
    "le": lambda value, bound: value <= bound,
    "lt": lambda value, bound: value < bound,
}
"""Of an annotated range."""


@dataclass
class Sender:
    """What is known of a site that reports.

    Args:
        classes: the number of classes.
        samples: the number of its samples.
        model: the model that it has received.
        agreed: lengths that are the same for all sites, and that the first report of a run tells; written here.
    """

    classes: int
    samples: int
    model: Params
    agreed: dict[tuple[str, ...], Any]


def check(report: Any, sender: Sender) -> None:
    """Hold a report against the marks and ranges of its fields.

    Raises:
        WireError: naming the field, without its value.
    """
    for name, hint in get_type_hints(type(report), include_extras=True).items():
        try:
            _Checker(sender, (name_of(type(report)), name)).check(getattr(report, name), hint)
        except ValueError as fault:
            raise WireError(f"a {name_of(type(report))} whose {name} {fault}") from None


@dataclass(frozen=True)
class _Checker:
    """Checks a value of a field, which is of its type already. Raises ValueError."""

    sender: Sender
    field: tuple[str, ...]

    def check(self, value: Any, hint: Any, marks: Sequence[Any] = ()) -> None:
        """Check a value against its annotation."""
        origin, inner = get_origin(hint), get_args(hint)
        if origin is Annotated:
            self.check(value, inner[0], (*marks, *inner[1:]))
        elif origin in (Union, types.UnionType):
            if value is not None:
                self.check(value, next(one for one in inner if one is not type(None)), marks)
        elif is_dataclass(value):
            check(value, self.sender)
        elif isinstance(value, Tensor):
            self._tensor(value, marks)
        elif isinstance(value, Mapping):
            self._mapping(value, inner, marks)
        elif isinstance(value, tuple | list):
            hints = [inner[0]] * len(value) if len(inner) < 2 or inner[1] is Ellipsis else inner
            for one, of in zip(value, hints, strict=True):
                self.check(one, of, marks)
        elif type(value) in (int, float):
            self._number(value, value, value, marks)

    def _mapping(self, value: Mapping[Any, Any], inner: Sequence[Any], marks: Sequence[Any]) -> None:
        if any(isinstance(mark, OfModel) for mark in marks):
            for name, tensor in value.items():
                if name not in self.sender.model or tensor.shape != self.sender.model[name].shape:
                    raise ValueError("has a tensor that is not like one of the model")
        else:
            shapes = {name: tuple(one.shape) for name, one in value.items() if isinstance(one, Tensor)}
            self._agreed("entries", (value.keys() - shapes.keys(), shapes))
        for name, one in value.items():
            _Checker(self.sender, (*self.field, str(name))).check(one, inner[1], marks)

    def _tensor(self, value: Tensor, marks: Sequence[Any]) -> None:
        shaped = next((mark for mark in marks if isinstance(mark, Shaped)), None)
        kind = str(value.dtype).removeprefix("torch.")
        if shaped is None:
            self._agreed("kind", (kind, value.ndim))
        else:
            if not (kind == shaped.kind or (shaped.kind == "float" and value.is_floating_point())):
                raise ValueError(f"is {kind} instead of {shaped.kind}")
            if value.ndim != len(shaped.shape):
                raise ValueError(f"has {value.ndim} dimensions instead of {len(shaped.shape)}")
            numbers = {name: int(name) for name in shaped.shape if name.isdigit()}
            known = {"K": self.sender.classes, "n": self.sender.samples, **numbers}
            for name, length in zip(shaped.shape, value.shape, strict=True):
                if name not in known:
                    self._agreed(name, length)
                elif length != known[name]:
                    raise ValueError(f"is of another shape than [{', '.join(shaped.shape)}]")
        if not value.numel() or value.dtype.is_complex or kind == "bool":
            return
        plain = value.double() if value.is_floating_point() else value
        self._number(plain.min().item(), plain.max().item(), plain.sum().item(), marks)

    def _number(self, least: float, most: float, total: float, marks: Sequence[Any]) -> None:
        """Check numbers of which these are the least, the largest and the sum."""
        whole = isinstance(least, int)
        if not whole and not any(isinstance(mark, MayBeInfinite) for mark in marks) and not math.isfinite(least + most):
            raise ValueError("is not finite")
        if whole and least < 0:
            raise ValueError("is negative")
        if any(isinstance(mark, OfSamples) for mark in marks) and max(most, total) > self.sender.samples:
            raise ValueError("counts more samples than the site has")
        for mark in marks:
            for name, holds in BOUNDS.items():
                bound = getattr(mark, name, None)
                if bound is not None and not (holds(least, bound) and holds(most, bound)):
                    raise ValueError("is out of range")

    def _agreed(self, what: str, value: Any) -> None:
        """Check a length that is the same for all sites."""
        if self.sender.agreed.setdefault((*self.field, what), value) != value:
            raise ValueError("is of another form than that of other sites")
