"""From stored images to the network's inputs: batched crop and flip on tensors, then normalisation.

The random numbers of augmentation are drawn from the task's stream before they are applied, so that every executor uses
the same crops.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.inputs import Augmentation, Kind, Preparation
from flnl.core.onto import onto


@dataclass(frozen=True)
class Transform(Preparation):
    """Crop, flip and normalise, like torchvision's RandomCrop, RandomHorizontalFlip, ToTensor and Normalize.

    Stored pixels are divided by ``scale`` (255 for images), then normalised with ``mean`` and ``std`` per channel.
    Random crops of ``size`` are taken from the image, padded by ``padding`` on each side with zeros *before*
    normalisation (black), not after it.
    """

    kind: ClassVar[Kind] = "image"
    size: tuple[int, int]  # (H, W) of the inputs
    mean: tuple[float, ...]
    std: tuple[float, ...]
    scale: float = 255.0
    padding: int = 0
    flip: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """(C, H, W) of the inputs."""
        return (len(self.mean), *self.size)

    def example(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Normal noise, float64 [*shape, C, H, W]."""
        return torch.randn((*shape, *self.shape), generator=generator, dtype=torch.float64)

    def random(self, stored: tuple[int, ...]) -> bool:
        """Whether the transform of images of size ``stored`` (H', W') is random.

        Raises:
            ValueError: if the padded image is smaller than the crop.
        """
        return self.flip or max(self._room(stored)) > 0

    def _room(self, stored: tuple[int, ...]) -> list[int]:
        """By how many pixels the padded image exceeds the crop: (vertically, horizontally)."""
        room = [have + 2 * self.padding - want for have, want in zip(stored, self.size, strict=True)]
        if min(room) < 0:
            raise ValueError(f"cannot crop {self.size} from images of {stored} padded by {self.padding}")
        return room

    def draw(self, rng: np.random.Generator, count: int, stored: tuple[int, ...]) -> Augmentation | None:
        """Draw the augmentation of ``count`` images of size ``stored`` (H', W'); None if nothing is random.

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
        """Crop and flip ``images`` [b, C, H', W'] by ``draws``; returns [b, C, H, W] of the same type."""
        if draws is None:
            return images
        padded = F.pad(images, [self.padding] * 4) if self.padding else images
        # On a CPU, one copy per image is ten times as fast as one gather; on a GPU, one launch per image is slow.
        crop = _crop_by_copy if images.device.type == "cpu" else _crop_by_gather
        return crop(padded, draws, self.size)

    def constants(self, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        """``mean`` and ``std``, each [C, 1, 1]; do not modify them."""
        return _constants(self.mean, self.std, dtype, device)

    def normalize(
        self,
        images: Tensor,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """Normalise stored pixels [b, C, H, W] to inputs of ``dtype`` in ``memory_format``."""
        mean, std = self.constants(dtype, images.device)
        return (images.to(dtype, memory_format=memory_format) / self.scale).sub_(mean).div_(std)


def _crop_by_copy(images: Tensor, draws: Augmentation, size: tuple[int, int]) -> Tensor:
    """Crop by one copy per image, in numpy, whose slicing costs a fraction of torch's."""
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
    """Crop by one gather per batch, whatever its size."""
    b, c = images.shape[:2]
    h, w = size
    device = images.device
    rows = onto(draws.offset[:, :1], device) + torch.arange(h, device=device)  # [b, h]
    columns = onto(draws.offset[:, 1:], device) + torch.arange(w, device=device)
    columns = torch.where(onto(draws.flip, device)[:, None], columns.flip(1), columns)
    picture = torch.arange(b, device=device)[:, None, None, None]
    channel = torch.arange(c, device=device)[None, :, None, None]
    return images[picture, channel, rows[:, None, :, None], columns[:, None, None, :]]


@lru_cache(maxsize=32)
def _constants(
    mean: tuple[float, ...], std: tuple[float, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, each [C, 1, 1]; cached, since creating them costs as much as using them."""
    with torch.inference_mode(False):  # tensors created in inference mode cannot be used in training
        return tuple(torch.tensor(v, dtype=dtype, device=device)[:, None, None] for v in (mean, std))  # type: ignore[return-value]
