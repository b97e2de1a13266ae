"""Registers the simulated GPU with Lightning Fabric: ``Fabric(accelerator="sim")``."""

from typing import Any

import torch
from lightning.fabric import connector
from lightning.fabric.accelerators import ACCELERATOR_REGISTRY
from lightning.fabric.accelerators.accelerator import Accelerator
from lightning.fabric.plugins.precision import MixedPrecision
from lightning.fabric.strategies.single_device import SingleDeviceStrategy


def register(name: str) -> None:
    """Make ``name`` an accelerator of one device. Fabric's connector knows no other accelerators, so it is patched."""

    class Simulated(Accelerator):
        """The simulated GPU."""

        def setup_device(self, device: torch.device) -> None:
            """Nothing to set up."""

        def teardown(self) -> None:
            """Nothing to release."""

        @staticmethod
        def parse_devices(devices: Any) -> list[int]:
            """There is one device."""
            return [0]

        @staticmethod
        def get_parallel_devices(devices: Any) -> list[torch.device]:
            """There is one device."""
            return [torch.device(name, 0)]

        @staticmethod
        def auto_device_count() -> int:
            """There is one device."""
            return 1

        @staticmethod
        def is_available() -> bool:
            """It is memory of the host."""
            return True

        @staticmethod
        def name() -> str:
            """The name in ``accelerator=``."""
            return name

    ACCELERATOR_REGISTRY.register(name, Simulated, description="simulated GPU")
    kind: Any = connector._Connector
    strategy, precision = kind._choose_strategy, kind._check_and_init_precision

    def chosen(self: Any) -> bool:
        return self._accelerator_flag == name or isinstance(self._accelerator_flag, Simulated)

    def choose_strategy(self: Any) -> Any:
        return SingleDeviceStrategy(device=torch.device(name, 0)) if chosen(self) else strategy(self)

    def check_and_init_precision(self: Any) -> Any:
        plugin = precision(self)
        if chosen(self) and isinstance(plugin, MixedPrecision):
            plugin.device = name
        return plugin

    kind._choose_strategy, kind._check_and_init_precision = choose_strategy, check_and_init_precision
