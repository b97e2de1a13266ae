"""The device and the precision of a process's network, by the precision plugins of Lightning's Fabric.

A ``Fabric`` of its own would read what launchers leave in the environment (Slurm, LSF, MPI, torchrun, ``fabric run``),
and prepare or refuse to train on several devices. A run is on one device, whoever has started it.
"""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

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
    placed = torch.device("cpu") if device == "cpu" else torch.device(device, 0)
    return Placement(placed, name, _autocast(name, device))


def _autocast(name: str, device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Lightning's context of a training step; importing Lightning takes as long as importing torch."""
    if name == "32-true":
        return nullcontext
    from lightning.fabric.plugins.precision import DoublePrecision, MixedPrecision

    plugin = DoublePrecision() if name == "64-true" else MixedPrecision("bf16-mixed", device)
    return plugin.forward_context
