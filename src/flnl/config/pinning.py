"""Instruction sets that are the same on every x86 machine, so that a run can have the same bits on each.

Libraries choose their code by the processor: wider vectors add numbers up in another order (docs/running.md, "The same
bits").
"""

from __future__ import annotations

import os
import platform
import shlex
import sys

from flnl.core.errors import UserError

PINS = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Haswell",
    "NPY_DISABLE_CPU_FEATURES": "X86_V4 AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL AVX512_SPR",
}
"""What torch's own code, oneDNN, MKL, the BLAS of NumPy and SciPy, and NumPy's own code read when they are first used.

Before 2.4 NumPy called AVX-512 otherwise. Of names that it does not know it gives an ImportWarning, which Python hides.
"""
FIRST = ("torch", "numpy")
"""Whose import is too late for them."""
X86 = ("x86_64", "AMD64")


def pin() -> None:
    """Pin them in this process and in those that it starts.

    Raises:
        UserError: if torch or NumPy is here already, which no longer reads them, or this machine is no x86.
    """
    if platform.machine() not in X86:
        raise UserError(
            f"reproducible=true: this machine is {platform.machine()}, and only x86 machines have equal bits"
        )
    if pinned():
        return
    if here := [name for name in FIRST if name in sys.modules]:
        settings = " ".join(f"{name}={shlex.quote(value)}" for name, value in PINS.items())
        raise UserError(
            f"reproducible=true: {here[0]} has been imported, and it chooses its code then; set {settings} before that"
        )
    os.environ.update(PINS)


def pinned() -> bool:
    """Whether this process began with the pins."""
    return all(os.environ.get(name) == value for name, value in PINS.items())
