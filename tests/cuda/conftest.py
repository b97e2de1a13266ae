"""The GPU of these tests: a real one, or else the simulated one."""

import os

import pytest
import torch

from tests.simulated_gpu import device
from tests.simulated_gpu.library import UnavailableError

DEMAND = "FLNL_DEMAND_GPU_TESTS"
"""If this variable is 1, it is a failure and no reason to skip that there is neither a GPU nor a compiler."""


@pytest.fixture(scope="session")
def gpu() -> str:
    """The kind of device to test on, as in ``device=``."""
    if torch.cuda.is_available():
        return "cuda"
    try:
        device.install()
    except UnavailableError as reason:
        message = f"there is no GPU, and the simulated one cannot be built: {reason}"
        if os.environ.get(DEMAND) == "1":
            pytest.fail(message)
        pytest.skip(message)
    return device.NAME
