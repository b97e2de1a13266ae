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

PRECISIONS: dict[int | str, str] = {32: "32-true", "tf32": "32-tf32", "bf16": "bf16-mixed", 64: "64-true"}


@dataclass(frozen=True)
class Placement:
    """Where and in which precision a network computes."""

    device: torch.device
    precision: str  # a value of ``PRECISIONS``: Lightning's name, or 32-tf32
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext  # context of a training step


def placement_for(device: str, precision: int | str) -> Placement:
    """Set up a device and a precision for this process.

    With ``tf32`` a GPU's matrix units round the factors of products and convolutions of float32 to 10 bits, in
    evaluation as well as in training.

    Raises:
        UserError: if there is no such device, or if it has no TF32.
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
        # precision=32 means 32
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    elif precision == "tf32":
        raise UserError("precision=tf32, but this run is on a CPU and TF32 is of NVIDIA's GPUs: use precision=32")
    name = PRECISIONS[precision]
    placed = torch.device("cpu") if device == "cpu" else torch.device(device, 0)
    return Placement(placed, name, _autocast(name, device))


def _autocast(name: str, device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Lightning's context of a training step; importing Lightning takes as long as importing torch."""
    if name in ("32-true", "32-tf32"):
        return nullcontext
    from lightning.fabric.plugins.precision import DoublePrecision, MixedPrecision

    plugin = DoublePrecision() if name == "64-true" else MixedPrecision("bf16-mixed", device)
    return plugin.forward_context
