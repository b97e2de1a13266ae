"""The GPU of these tests: a real one, or else the simulated one, in processes that have it from the beginning.

Torch counts the kinds of device at the first backward pass, and a process with a device must not be forked. So the
simulated GPU is installed before any test runs, and only where ``make test-gpu`` asks for it by a variable.
"""

import os

import pytest
import torch

from tests.simulated_gpu import device
from tests.simulated_gpu.library import UnavailableError

WANTED, DEMANDED = "FLNL_SIMULATED_GPU", "FLNL_DEMAND_GPU_TESTS"
"""With the first variable at 1 these tests run on the simulated GPU; with the second, none of them may be skipped."""


def _install() -> str | None:
    """Why there is no GPU to test on; None if there is one."""
    if torch.cuda.is_available():
        return None
    if os.environ.get(WANTED) != "1":
        return "torch finds no GPU; make test-gpu runs this on the simulated one"
    try:
        device.install()
    except UnavailableError as reason:
        return f"torch finds no GPU, and the simulated one cannot be built: {reason}"
    return None


LACKING = _install()


@pytest.fixture(scope="session")
def gpu() -> str:
    """The kind of device to test on, as in ``device=``."""
    if LACKING is not None:
        if os.environ.get(DEMANDED) == "1":
            pytest.fail(LACKING)
        pytest.skip(LACKING)
    return "cuda" if torch.cuda.is_available() else device.NAME
