"""What a data set is, once read: images, labels as far as they are known, and how images become inputs.

Everything here is a value; where the files come from lives in the modules that build it.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.data.transforms import Transform

Labels = NDArray[np.int64]
Indices = NDArray[np.int64]


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


@dataclass(frozen=True)
class Dataset:
    """A data set with its official split.

    ``given`` holds labels that came with the data and may be wrong (then the noise is theirs); ``truth`` the correct
    ones where somebody knows them. At least one of the two is there. Both are int64 [N]; ``given`` is None where the
    labels are the truth and noise is to be simulated.
    """

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images
    test_labels: Labels  # [M], correct
    transform: Transform
    truth: Labels | None  # [N]
    given: Labels | None = None  # [N]
    clients: Indices | None = None  # [N], a natural client's number for each sample
    ids: Sequence[str] | None = None  # [N], a sample's name or path; its position where None
    fingerprint: str = ""  # sha256 of labels and images, which ``dataset.fingerprint=names`` tells by paths and sizes
    names_fingerprint: str | None = None  # the same with files told by paths and sizes; None where there are no files

    @property
    def num_classes(self) -> int:
        """The number of classes C."""
        return len(self.classes)

    @property
    def labels(self) -> Labels:
        """The labels that come with the data: the given ones, or else the true ones, [N]."""
        labels = self.given if self.given is not None else self.truth
        assert labels is not None
        return labels
