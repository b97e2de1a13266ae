"""What a data set's images can do, and the arrays that go with them: labels and indices."""

from collections.abc import Iterator, Sequence
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Labels = NDArray[np.int64]

Indices = NDArray[np.int64]


class ReadDataset:
    """Marks a data set that has been read, which may be configured in the place of what reads one."""


class Images(Protocol):
    """Images by position, in memory or decoded when asked for. Never copied a client."""

    @property
    def shape(self) -> tuple[int, int, int]:
        """(C, H, W) of what the network receives."""

    @property
    def augmented_size(self) -> tuple[int, int]:
        """(H', W') of what random crops are taken from, before padding: what ``Transform.draw`` is to be told."""

    @property
    def bytes_in_memory(self) -> int | None:
        """What they take in memory; None where they are decoded when asked for."""

    def __len__(self) -> int:
        """How many images there are."""

    def read(self, index: Tensor, *, augmented: bool = False) -> Tensor:
        """The images at ``index`` [b], as stored: uint8 or float32 [b, C, H', W'].

        ``augmented`` asks for the size that random crops are taken from, where that differs from ``shape``.
        """

    def read_each(self, parts: Sequence[Tensor], *, augmented: bool = False) -> Iterator[Tensor]:
        """What ``read`` gives of each of ``parts`` [b], in order; the next may be read while one is used."""

    def to(self, device: torch.device | str) -> Self:
        """The same images, read onto ``device``."""
