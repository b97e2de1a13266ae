"""The images of a stack's clients, read once if they fit into memory."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from flnl.core.inputs import Augmentation
from flnl.core.messages import ClientTask
from flnl.core.onto import onto
from flnl.engine.network import Network
from flnl.engine.stacked.errors import NotStackable


class Pool:
    """Images by row, the clients' samples one after another; stored as inputs if they need no augmentation."""

    def __init__(self, network: Network, tasks: Sequence[ClientTask], most: int) -> None:
        """Read the images if there are at most ``most``.

        Raises:
            NotStackable: if there are more, and not all clients share one ``Images``.
        """
        self._network, self._store = network, tasks[0].samples.images
        self.stored = self._store.augmented_size
        self.random = network.transform.random(self.stored)
        self._index = torch.cat([task.samples.index for task in tasks])
        self._images: Tensor | None = None
        if len(self._index) <= most:
            images = torch.cat(list(self._read(tasks)))
            self._images = images if self.random else network.inputs(images, None)
        elif any(task.samples.images is not self._store for task in tasks):
            raise NotStackable("the clients' images are too many to be held in memory and come from several stores")

    def _read(self, tasks: Sequence[ClientTask]) -> Iterator[Tensor]:
        """Every client's stored images; clients that share a store are read ahead."""
        for _, group in groupby((task.samples for task in tasks), lambda samples: id(samples.images)):
            samples = list(group)
            images = self._network.here(samples[0].images)
            yield from images.read_each([each.index for each in samples], augmented=True)

    def inputs(
        self, rows: Sequence[Tensor], draws: Iterable[Sequence[Augmentation | None]]
    ) -> Iterator[tuple[Tensor, ...]]:
        """Inputs [b, C, H, W] of the samples at each of ``rows`` [b], one for each of the matching draws.

        Images in files are decoded ahead (``Images.read_each``), while earlier inputs are in use.
        """
        if self._images is None:
            stored = self._network.here(self._store).read_each([self._index[part] for part in rows], augmented=True)
            for images, drawn in zip(stored, draws, strict=True):
                yield tuple(self._network.inputs(images, crops) for crops in drawn)
            return
        for part, drawn in zip(rows, draws, strict=True):
            images = self._images.index_select(0, onto(part, self._images.device))
            yield tuple(self._network.inputs(images, crops) if self.random else images for crops in drawn)
