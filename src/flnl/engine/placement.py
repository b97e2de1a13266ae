"""The device and the precision of a process's network, by Lightning's Fabric where there is something to set up."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, cast

import torch

from flnl.core.errors import UserError

PRECISIONS: dict[int | str, str] = {32: "32-true", "bf16": "bf16-mixed", 64: "64-true"}


@dataclass(frozen=True)
class Placement:
    """Where and in which precision a network computes."""

    device: torch.device
    precision: str  # Lightning's name, a value of ``PRECISIONS``
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext  # context of a training step


def placement_for(device: str, precision: int | str) -> Placement:
    """Set up a device and a precision for this process.

    On a CPU in 32 bits, Fabric has nothing to do, and importing it takes as long as importing torch.

    Raises:
        UserError: if there is no such device.
    """
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    elif device != "cpu" and not torch.get_device_module(device).is_available():
        kind = "GPU" if device == "cuda" else "such device"
        raise UserError(
            f"device={device}, but torch finds no {kind} here: use device=cpu, or device=auto to take what there is"
        )
    if device != "cpu":  # make runs reproducible to the bit, as they are on the CPU
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Nothing here reads memory that was not written, so filling it costs time for nothing.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # no stub
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.allow_tf32 = False  # precision=32 means 32
    name = PRECISIONS[precision]
    if device == "cpu" and name == "32-true":
        return Placement(torch.device("cpu"), name)
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator=device, devices=1, precision=cast(Any, name))
    return Placement(fabric.device, name, nullcontext if name == "32-true" else fabric.autocast)
