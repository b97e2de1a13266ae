"""Keeps stored images on the training device: they are moved once, so a round copies indices instead of pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from flnl.core.images import Images


def _room(device: torch.device) -> int:
    """Half of the device's free memory, in bytes; the rest is left for training."""
    free, _ = torch.get_device_module(device).mem_get_info(device)
    return int(free) // 2


class Resident:
    """Maps images to a copy on one device; on a CPU, or if they are too large or in files, to themselves."""

    def __init__(self, device: torch.device, room: Callable[[torch.device], int] = _room) -> None:
        self._device, self._room = device, room
        self._held: dict[int, tuple[Images, Images]] = {}  # keeps the original alive, so that its id stays unique

    def __call__(self, images: Images) -> Images:
        """The images on the device, moved at the first call; the images themselves where they cannot be moved."""
        if self._device.type == "cpu":
            return images
        if id(images) not in self._held:
            size = images.bytes_in_memory
            fits = size is not None and size <= self._room(self._device)
            self._held[id(images)] = images, images.to(self._device) if fits else images
        return self._held[id(images)][1]
