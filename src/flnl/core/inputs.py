"""What a sample is: how stored images, rows of numbers or token ids become inputs of a network."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

Kind = Literal["image", "vector", "tokens"]
"""Images [C, H, W]; rows of numbers [D], such as features or the columns of a table; token ids [L] of a text."""

WORDS: dict[Kind, str] = {"image": "images", "vector": "rows of numbers", "tokens": "texts"}
"""What samples of each kind are called in messages."""

UNKNOWN, PAD = 0, 1
"""Token ids of a word that is in no vocabulary, and of what follows the end of a text."""


@dataclass(frozen=True)
class Augmentation:
    """The draws of one batch: ``offset`` int64 [b, 2] (top, left) of the crop, ``flip`` bool [b]."""

    offset: Tensor
    flip: Tensor


class Preparation(ABC):
    """From stored samples to inputs of a network; by default nothing is drawn.

    ``stored`` sizes are those of images before a crop, else empty.
    """

    kind: ClassVar[Kind]

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""

    @property
    def scale(self) -> float:
        """What stored values are divided by to be in the range that they are shown in."""
        return 1.0

    def random(self, stored: tuple[int, ...]) -> bool:
        """Whether inputs are drawn."""
        return False

    def draw(self, rng: np.random.Generator, count: int, stored: tuple[int, ...]) -> Augmentation | None:
        """The draws for ``count`` samples; None if nothing is random."""
        return None

    def augment(self, images: Tensor, draws: Augmentation | None) -> Tensor:
        """Stored samples [b, ...] changed by ``draws``."""
        return images

    @abstractmethod
    def normalize(
        self,
        images: Tensor,
        dtype: torch.dtype = torch.float32,
        memory_format: torch.memory_format = torch.contiguous_format,
    ) -> Tensor:
        """Inputs [b, *shape] of stored samples; token ids have no ``dtype``, and rows no ``memory_format``."""

    @abstractmethod
    def example(self, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
        """Random inputs [*shape, *self.shape] on the CPU, float64 or token ids."""
