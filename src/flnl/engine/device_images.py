"""Stored images on the device that trains, moved there once and whole: a round copies indices, not pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from flnl.core.images import Images


def _room(device: torch.device) -> int:
    """Half of the memory that is free, in bytes; the rest is the training's."""
    return torch.cuda.mem_get_info(device)[0] // 2


class Resident:
    """What stands for images on one device: themselves on a CPU, and where they are too many or lie in files."""

    def __init__(self, device: torch.device, room: Callable[[torch.device], int] = _room) -> None:
        self._device, self._room = device, room
        self._held: dict[int, tuple[Images, Images]] = {}  # both, so that no other images come to the same id

    def __call__(self, images: Images) -> Images:
        """The images, or the same ones held on the device from the first call on."""
        if self._device.type == "cpu":
            return images
        if id(images) not in self._held:
            size = images.bytes_in_memory
            fits = size is not None and size <= self._room(self._device)
            self._held[id(images)] = images, images.to(self._device) if fits else images
        return self._held[id(images)][1]
