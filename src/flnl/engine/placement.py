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

VISIBLE = "CUDA_VISIBLE_DEVICES"
"""The environment variable that says which GPUs a process may use."""


@dataclass(frozen=True)
class Placement:
    """Where and in which precision a network computes."""

    device: torch.device
    precision: str  # a value of ``PRECISIONS``: Lightning's name, or 32-tf32
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext  # context of a training step


def device_for(device: str) -> torch.device:
    """The device of this machine that a value of ``device`` stands for.

    Raises:
        UserError: if there is none.
    """
    kind, _, number = device.partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    elif kind != "cpu" and not torch.get_device_module(kind).is_available():
        lacking = "GPU" if kind == "cuda" else "such device"
        raise UserError(
            f"device={device}, but torch finds no {lacking} here: use device=cpu, or device=auto to take what there is"
        )
    if number and int(number) >= (count := torch.get_device_module(kind).device_count()):
        last = "" if count == 1 else f" to {kind}:{count - 1}"
        hidden = f" with {VISIBLE}={os.environ[VISIBLE]}" if VISIBLE in os.environ else ""
        raise UserError(f"device={device}, but torch finds only {kind}:0{last} here{hidden}: use one of these")
    return torch.device("cpu") if kind == "cpu" else torch.device(kind, int(number or 0))


def visible(kind: str) -> list[str]:
    """The devices of a kind that this process may use, as ``CUDA_VISIBLE_DEVICES`` names them to other processes."""
    count = torch.get_device_module(kind).device_count()
    named = [one.strip() for one in os.environ.get(VISIBLE, "").split(",")]
    return named[:count] if VISIBLE in os.environ and len(named) >= count else [*map(str, range(count))]


def taken(device: torch.device) -> str | None:
    """A warning where other processes hold more than half of a GPU's memory; None elsewhere."""
    if device.type == "cpu":
        return None
    library = torch.get_device_module(device)
    free, total = library.mem_get_info(device)
    others = total - free - library.memory_reserved(device)
    if others <= total / 2:
        return None
    name = f"GPU {visible(device.type)[device.index]} ({library.get_device_name(device)})"
    return f"other processes hold {others / 2**30:.0f} of the {total / 2**30:.0f} GiB of {name}"


def placement_for(device: str, precision: int | str) -> Placement:
    """Set up a device and a precision for this process.

    With ``tf32`` a GPU's matrix units round the factors of products and convolutions of float32 to 10 bits, in
    evaluation as well as in training.

    Raises:
        UserError: if there is no such device, or if it has no TF32.
    """
    placed = device_for(device)
    if placed.type != "cpu":  # make runs reproducible to the bit, as they are on the CPU
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
        # Nothing here reads memory that was not written, so filling it costs time for nothing.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # no stub
        torch.backends.cudnn.benchmark = False
        # precision=32 means 32
        torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
        library = torch.get_device_module(placed)
        if library.device_count() > 1:
            library.set_device(placed)  # new streams and graphs are the current device's
    elif precision == "tf32":
        raise UserError("precision=tf32, but this run is on a CPU and TF32 is of NVIDIA's GPUs: use precision=32")
    name = PRECISIONS[precision]
    return Placement(placed, name, _autocast(name, placed.type))


def _autocast(name: str, device: str) -> Callable[[], AbstractContextManager[Any]]:
    """Lightning's context of a training step; importing Lightning takes as long as importing torch."""
    if name in ("32-true", "32-tf32"):
        return nullcontext
    from lightning.fabric.plugins.precision import DoublePrecision, MixedPrecision

    plugin = DoublePrecision() if name == "64-true" else MixedPrecision("bf16-mixed", device)
    return plugin.forward_context
