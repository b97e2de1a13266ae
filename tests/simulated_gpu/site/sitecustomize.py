"""Every Python that is started with this folder on its path and FLNL_SIMULATED_GPU=1 has the simulated GPU."""

import os

if os.environ.get("FLNL_SIMULATED_GPU") == "1":
    from tests.simulated_gpu.device import install

    install()
