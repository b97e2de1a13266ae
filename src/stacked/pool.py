"""The images of a stack's clients, read once where they fit."""

from collections.abc import Sequence

import torch
from torch import Tensor

from src.core import ClientTask
from src.data.transforms import Augmentation
from src.network import Network
from src.stacked.refusal import NotStackable


class Pool:
    """Images by row, the clients' samples one after another; as inputs already, if nothing about them is random."""

    def __init__(self, network: Network, tasks: Sequence[ClientTask], most: int) -> None:
        """Read the images, if they are ``most`` at most.

        Raises:
            NotStackable: if they are more and not in one store.
        """
        self._network, self._store = network, tasks[0].samples.images
        self.stored = self._store.augmented_size
        self.random = network.transform.random(self.stored)
        self._index = torch.cat([task.samples.index for task in tasks])
        self._images: Tensor | None = None
        if len(self._index) <= most:
            read = (network.here(t.samples.images).read(t.samples.index, augmented=True) for t in tasks)
            images = torch.cat(list(read))
            self._images = images if self.random else network.inputs(images, None)
        elif any(task.samples.images is not self._store for task in tasks):
            raise NotStackable("the clients' images are too many to be held and not in one store")

    def inputs(self, rows: Tensor, draws: Augmentation | None) -> Tensor:
        """Inputs [b, C, H, W] of the samples at ``rows`` [b], cropped and flipped by ``draws``."""
        if self._images is None:
            stored = self._network.here(self._store).read(self._index[rows], augmented=True)
            return self._network.inputs(stored, draws)
        found = self._images.index_select(0, rows.to(self._images.device))
        return self._network.inputs(found, draws) if self.random else found
