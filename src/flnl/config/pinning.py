"""Instruction sets that are the same on every x86 machine, so that a run can have the same bits on each.

Libraries choose their code by the processor: wider vectors add numbers up in another order (docs/running.md, "The same
bits").
"""

from __future__ import annotations

import os
import platform
import sys

from flnl.core.errors import UserError

PINS = {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_CBWR": "COMPATIBLE"}
"""What torch's own code, oneDNN and MKL read when they are first used."""
X86 = ("x86_64", "AMD64")


def pin() -> None:
    """Pin them in this process and in those that it starts.

    Raises:
        UserError: if torch is here already, which no longer reads them, or this machine is no x86.
    """
    if platform.machine() not in X86:
        raise UserError(
            f"reproducible=true: this machine is {platform.machine()}, and only x86 machines have equal bits"
        )
    if pinned():
        return
    if "torch" in sys.modules:
        settings = " ".join(f"{name}={value}" for name, value in PINS.items())
        raise UserError(
            f"reproducible=true: torch has been imported, and it chooses its code then; set {settings} before that"
        )
    os.environ.update(PINS)


def pinned() -> bool:
    """Whether this process began with the pins."""
    return all(os.environ.get(name) == value for name, value in PINS.items())
