"""Every Python that is started with this folder on its path and FLNL_SIMULATED_GPU=1, or 2, has simulated GPUs."""

import os

if os.environ.get("FLNL_SIMULATED_GPU") in ("1", "2"):
    from tests.simulated_gpu.device import install

    install()
