"""A client's inputs: its images, read, augmented and normalised some batches at a time."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from torch import Tensor

from flnl.core.messages import ClientTask
from flnl.engine.local.batching import Draws
from flnl.engine.network import Network


class Inputs:
    """One client's samples as inputs of the network."""

    def __init__(self, network: Network, task: ClientTask, draws: Draws) -> None:
        """Read all images at once if they fit one chunk, and prepare them once if they need no augmentation."""
        self._network, self._draws = network, draws
        self._samples = replace(task.samples, images=network.here(task.samples.images))
        self._stored: Tensor | None = None
        self._fixed: Tensor | None = None
        if len(self._samples) <= network.chunk(1):
            self._stored = self._samples.read(augmented=True)
            random = network.transform.random(tuple(self._stored.shape[2:]))
            self._fixed = None if random else network.prepare(self._stored)

    def of(self, parts: Sequence[Tensor], *, beside: bool = False) -> Iterator[Tensor]:
        """Inputs of the samples at each of ``parts`` int64 [b], augmented if the data set uses augmentation.

        ``beside`` says that they are of a phase's second pool, whose crops have a stream of their own.
        """
        return (views[0] for views in self.views(parts, 1, beside=beside))

    def views(self, parts: Sequence[Tensor], count: int, *, beside: bool = False) -> Iterator[tuple[Tensor, ...]]:
        """As ``of``, in ``count`` views; without augmentation, they are one tensor."""
        if self._fixed is not None:
            for part in parts:
                yield (self._fixed[part.to(self._network.device, non_blocking=True)],) * count
            return
        samples, stored = self._samples, self._stored
        held = (
            samples.read_each(parts, augmented=True)
            if stored is None
            else (stored.index_select(0, part.to(stored.device, non_blocking=True)) for part in parts)
        )
        transform, draws = self._network.transform, self._draws
        for images in held:
            size = tuple(images.shape[2:])
            if not transform.random(size):
                yield (self._network.prepare(images),) * count
                continue
            drawn = [draws.crops(transform, len(images), size, view=view, beside=beside) for view in range(count)]
            yield tuple(self._network.prepare(images, crops) for crops in drawn)
