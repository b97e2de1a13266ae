"""What a step asks for besides tensors, and what it does that a recorded step could not do again."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from flnl.core.messages import Broadcast
from flnl.core.step import Step

NUMBER, ROUND, RECEIVED = "number", "round", "received"


class WatchedStep(Step):
    """A step that notes in ``asked`` who asks for the batch's number or runs the received model."""

    asked: set[str]

    def __getattribute__(self, name: str) -> Any:
        if name in (NUMBER, RECEIVED):
            object.__getattribute__(self, "asked").add(name)
        return super().__getattribute__(name)


class WatchedBroadcast(Broadcast):
    """What was sent; it notes in ``asked`` who asks for the round."""

    asked: set[str]

    @classmethod
    def of(cls, broadcast: Broadcast, asked: set[str]) -> Broadcast:
        """The same values, watched."""
        made = object.__new__(cls)
        made.__dict__.update(vars(broadcast), asked=asked)
        return made

    def __getattribute__(self, name: str) -> Any:
        if name == ROUND:
            object.__getattribute__(self, "asked").add(name)
        return super().__getattribute__(name)


class Waits(TorchDispatchMode):
    """Tells ``found`` of every operation that makes the host wait for the device, or reads the host's memory.

    What it tells of is done all the same.
    """

    def __init__(self, found: Callable[[str], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._found = found

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        reason = _waiting(func, args)
        found = func(*args, **(kwargs or {}))
        if reason is None and _crosses(args, found):
            reason = "copies between the host and the device"
        if reason is not None:
            self._found(f"{reason} ({func.name().removeprefix('aten::')})")
        return found


VALUES = ("_local_scalar_dense", "item", "equal", "is_nonzero")
SHAPES = ("nonzero", "masked_select", "unique", "_unique", "_unique2", "unique_dim", "unique_consecutive")


def _waiting(func: Any, args: Any) -> str | None:
    name = func.name().removeprefix("aten::").partition(".")[0]
    if name in VALUES:
        return "looks at a tensor's value"
    if name in SHAPES:
        return "has a shape that depends on values"
    by_mask = name in ("index", "index_put", "index_put_", "_unsafe_index") and any(
        isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    )
    return "takes elements by a mask" if by_mask else None


def _crosses(args: Any, found: Any) -> bool:
    """Whether a tensor of another kind of device went in than came out; a number that stands in a tensor may."""
    given = {t.device.type for t in args if isinstance(t, Tensor) and t.dim() > 0}
    return isinstance(found, Tensor) and found.dim() > 0 and bool(given - {found.device.type})
