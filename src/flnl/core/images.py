"""Protocol of a data set's images, the types of labels and indices, and ImageNet's normalisation."""

from collections.abc import Iterator, Sequence
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Labels = NDArray[np.int64]

Indices = NDArray[np.int64]

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and standard deviation per channel that networks trained on ImageNet expect."""


class ReadDataset:
    """Marker base class: a data set that has been read; configurations may give it in place of a reader."""


class Images(Protocol):
    """Images by position, in memory or decoded on demand; shared by all clients."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the network's input, (C, H, W) of images."""

    @property
    def augmented_size(self) -> tuple[int, ...]:
        """(H', W') of the images that random crops are taken from, before padding; () of what is no image."""

    @property
    def bytes_in_memory(self) -> int | None:
        """Size in memory; None if images are decoded on demand."""

    def __len__(self) -> int:
        """Number of images."""

    def read(self, index: Tensor, *, augmented: bool = False) -> Tensor:
        """The images at ``index`` [b], as stored: uint8 or float32 [b, C, H', W'].

        With ``augmented``, in the size that random crops are taken from, if that differs from ``shape``.
        """

    def read_each(self, parts: Sequence[Tensor], *, augmented: bool = False) -> Iterator[Tensor]:
        """``read`` each of ``parts`` [b] in order; may read ahead while the caller uses a part."""

    def to(self, device: torch.device | str) -> Self:
        """The same images on ``device``."""
