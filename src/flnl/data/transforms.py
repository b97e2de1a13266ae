"""From stored images to the network's inputs: batched crop and flip on tensors, then normalisation.

Augmentation draws are data: they are drawn from the task's stream before they are applied, so that every way of
running a client sees the same crops.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation a channel that networks trained on ImageNet expect."""


@dataclass(frozen=True)
class Augmentation:
    """The draws of one batch: ``offset`` int64 [b, 2] (top, left) of the crop, ``flip`` bool [b]."""

    offset: Tensor
    flip: Tensor


@dataclass(frozen=True)
class Transform:
    """Crop, flip and normalise, as torchvision's RandomCrop, RandomHorizontalFlip, ToTensor and Normalize do.

    Stored pixels are divided by ``scale`` (255 for images), then ``mean`` and ``std`` are applied a channel. Random
    crops of ``size`` are taken from the image padded with black by ``padding`` on each side; black means zero *before*
    normalisation, which differs from zeros after it.
    """

    size: tuple[int, int]  # (H, W) of the inputs
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0
    padding: int = 0
    flip: bool = False

    def random(self, stored: tuple[int, int]) -> bool:
        """Whether anything is random about images stored at ``stored`` (H', W').

        Raises:
            ValueError: if the padded image is smaller than the crop.
        """
        return self.flip or max(self._room(stored)) > 0

    def _room(self, stored: tuple[int, int]) -> list[int]:
        """How many pixels the padded image is larger than the crop, (down, across)."""
        room = [have + 2 * self.padding - want for have, want in zip(stored, self.size, strict=True)]
        if min(room) < 0:
            raise ValueError(f"cannot crop {self.size} from images of {stored} padded by {self.padding}")
        return room

    def draw(self, rng: np.random.Generator, count: int, stored: tuple[int, int]) -> Augmentation | None:
        """Draws for ``count`` images stored at ``stored`` (H', W'); None where nothing is random.

        Raises:
            ValueError: if the padded image is smaller than the crop.
        """
        room = self._room(stored)
        if not self.random(stored):
            return None
        offset = np.stack([rng.integers(0, r + 1, count) for r in room], axis=1)
        flip = rng.random(count) < 0.5 if self.flip else np.zeros(count, bool)
        return Augmentation(torch.from_numpy(offset), torch.from_numpy(flip))

    def augment(self, images: Tensor, draws: Augmentation | None) -> Tensor:
        """Crop and flip ``images`` [b, C, H', W'] by ``draws``; gives [b, C, H, W] of the same type."""
        if draws is None:
            return images
        padded = F.pad(images, [self.padding] * 4) if self.padding else images
        # On a CPU a copy a picture is ten times as fast as one gather; on an accelerator a launch a picture is not.
        crop = _crop_by_copy if images.device.type == "cpu" else _crop_by_gather
        return crop(padded, draws, self.size)

    def normalize(
        self,
        images: Tensor,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """Stored pixels [b, C, H, W] as inputs of ``dtype``, laid out as ``memory_format`` says."""
        mean, std = _constants(self.mean, self.std, dtype, images.device)
        return (images.to(dtype, memory_format=memory_format) / self.scale).sub_(mean).div_(std)


def _crop_by_copy(images: Tensor, draws: Augmentation, size: tuple[int, int]) -> Tensor:
    """One copy a picture, through numpy: its slices cost a fraction of torch's."""
    h, w = size
    source = images.numpy()
    cropped = np.empty((*source.shape[:2], h, w), source.dtype)
    for target, picture, (top, left), flip in zip(
        cropped, source, draws.offset.tolist(), draws.flip.tolist(), strict=True
    ):
        window = picture[:, top : top + h, left : left + w]
        target[...] = window[:, :, ::-1] if flip else window
    return torch.from_numpy(cropped)


def _crop_by_gather(images: Tensor, draws: Augmentation, size: tuple[int, int]) -> Tensor:
    """One gather a batch, whatever its size."""
    b, c = images.shape[:2]
    h, w = size
    device = images.device
    rows = draws.offset[:, :1].to(device, non_blocking=True) + torch.arange(h, device=device)  # [b, h]
    columns = draws.offset[:, 1:].to(device, non_blocking=True) + torch.arange(w, device=device)
    columns = torch.where(draws.flip.to(device, non_blocking=True)[:, None], columns.flip(1), columns)
    picture = torch.arange(b, device=device)[:, None, None, None]
    channel = torch.arange(c, device=device)[None, :, None, None]
    return images[picture, channel, rows[:, None, :, None], columns[:, None, None, :]]


@lru_cache(maxsize=32)
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, each [C, 1, 1]; kept, because making them costs as much as using them."""
    with torch.inference_mode(False):  # a tensor made in inference mode could not be used in a training step
        return tuple(torch.tensor(v, dtype=dtype, device=device)[:, None, None] for v in (mean, std))  # type: ignore[return-value]
