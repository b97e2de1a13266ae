"""Traces which non-tensor values a step reads, and which of its operations a CUDA graph cannot record."""

from collections.abc import Callable
from functools import cache
from typing import Any, Never

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flnl.core.messages import Broadcast
from flnl.core.step import Step
from flnl.engine.stacked.errors import NotStackable

NUMBER, ROUND, RECEIVED = "number", "round", "received"


def refuse(name: str) -> Never:
    """Refuse to give what each client has of a step for itself.

    Raises:
        NotStackable: always.
    """
    raise NotStackable(f"it reads step.{name}, and each client has its own")


class RefusingStep(Step):
    """A step that refuses to give some attributes; the others are read as fast as of any step."""

    @classmethod
    def of(cls, step: Step, refused: frozenset[str]) -> Step:
        """A copy of ``step`` that refuses these."""
        made = object.__new__(_refusing(refused))
        made.__dict__.update(vars(step))
        return made


@cache
def _refusing(names: frozenset[str]) -> type[RefusingStep]:
    """The class of steps that refuse these: a property counts more than an attribute of the same name."""

    def refusing(name: str) -> property:
        return property(lambda _: refuse(name))

    return type("RefusingStep", (RefusingStep,), {name: refusing(name) for name in names})


class WatchedStep(Step):
    """A step that calls ``reading`` with the name of each of its attributes before it is read."""

    reading: Callable[[str], object]

    @classmethod
    def of(cls, step: Step, reading: Callable[[str], object]) -> Step:
        """A watched copy of ``step``."""
        watched = object.__new__(cls)
        object.__getattribute__(watched, "__dict__").update(vars(step), reading=reading)
        return watched

    def __getattribute__(self, name: str) -> Any:
        object.__getattribute__(self, "reading")(name)
        return super().__getattribute__(name)


class WatchedBroadcast(Broadcast):
    """A broadcast that records in ``asked`` whether its round is read."""

    asked: set[str]

    @classmethod
    def of(cls, broadcast: Broadcast, asked: set[str]) -> Broadcast:
        """A watched copy of ``broadcast``."""
        watched = object.__new__(cls)
        watched.__dict__.update(vars(broadcast), asked=asked)
        return watched

    def __getattribute__(self, name: str) -> Any:
        if name == ROUND:
            object.__getattribute__(self, "asked").add(name)
        return super().__getattribute__(name)


class Waits(TorchDispatchMode):
    """Calls ``report`` for every operation that makes the host wait for the device, or reads the host's memory.

    The operation itself runs as usual.
    """

    def __init__(self, report: Callable[[str], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._report = report

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reason = _waiting(func, args)
        result = func(*args, **(kwargs or {}))
        if reason is None and _crosses(args, result):
            reason = "copies between the host and the device"
        if reason is not None:
            self._report(f"{reason} ({func.name().removeprefix('aten::')})")
        return result


VALUES = ("_local_scalar_dense", "item", "equal", "is_nonzero")
SHAPES = ("nonzero", "masked_select", "unique", "_unique", "_unique2", "unique_dim", "unique_consecutive")


def _waiting(func: Any, args: Any) -> str | None:
    name = func.name().removeprefix("aten::").partition(".")[0]
    if name in VALUES:
        return "reads a tensor's value"
    if name in SHAPES:
        return "has a shape that depends on values"
    by_mask = name in ("index", "index_put", "index_put_", "_unsafe_index") and any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )
    return "selects elements by a mask" if by_mask else None


def _crosses(args: Any, result: Any) -> bool:
    """Whether an argument is on another kind of device than the result; scalar tensors do not count."""
    given = {t.device.type for t in args if isinstance(t, Tensor) and t.dim() > 0}
    return isinstance(result, Tensor) and result.dim() > 0 and bool(given - {result.device.type})
