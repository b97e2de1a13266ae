"""A client's batches and the random draws for each of them.

All executors take batches and draws from here, so a client sees the same samples, crops, mixtures and draws of loss
terms under each of them. Each purpose has its own random stream: switching one off does not change the others.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle, islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flnl.core import checked
from flnl.core.inputs import Augmentation, Preparation
from flnl.core.messages import ClientTask
from flnl.core.parts import BatchRule, LossTerm
from flnl.core.step import Mixing
from flnl.core.streams import OfEngine
from flnl.core.training import Training


def batch_sizes(count: int, batch_size: int, *, join_last_of_one: bool) -> list[int]:
    """Sizes of the batches of ``count`` samples; the last may be short.

    Batch norm has no statistics for a batch of one sample: ``join_last_of_one`` adds such a last sample to the batch
    before it.

    >>> batch_sizes(7, 3, join_last_of_one=True)
    [3, 4]
    """
    full, rest = divmod(count, batch_size)
    sizes = [batch_size] * full + [rest] * (rest > 0)
    if join_last_of_one and len(sizes) > 1 and sizes[-1] == 1:
        sizes[-2:] = [sizes[-2] + 1]
    return sizes


def chunks(sizes: Sequence[int], together: int) -> Iterator[Sequence[int]]:
    """Split the batch ``sizes`` into runs of ``together`` batches, each prepared at once."""
    for first in range(0, len(sizes), together):
        yield sizes[first : first + together]


def passes(training: Training, sizes: Sequence[int]) -> int:
    """Epochs of a visit whose epochs have batches of these ``sizes``; under ``train.steps`` the last may be cut."""
    if training.steps is None:
        return training.epochs
    return -(-training.steps // len(sizes)) if sizes else 0


def steps_of(training: Training, sizes: Sequence[int]) -> int:
    """Number of steps of a visit whose epochs have batches of these ``sizes``."""
    if training.steps is None:
        return training.epochs * len(sizes)
    return training.steps if sizes else 0


def restarted(sizes: Sequence[int], steps: int) -> list[int]:
    """Sizes of the next ``steps`` batches of a pool whose batches have ``sizes``; exhausted, it starts over.

    >>> restarted([3, 1], 5)
    [3, 1, 3, 1, 3]
    """
    return list(islice(cycle(sizes), steps))


@dataclass(frozen=True)
class Draws:
    """One client's random draws during one local training, in order; each stream is opened at its first draw."""

    task: ClientTask
    batch: BatchRule
    terms: Mapping[str, LossTerm]
    _views: dict[tuple[int, bool], np.random.Generator] = field(default_factory=dict, init=False, repr=False)

    def order(self, chosen: Tensor | None) -> Tensor:
        """The next epoch's shuffled positions, int64 [n]: of the ``chosen`` samples, or of all."""
        drawn = torch.from_numpy(self._order.permutation(len(self.task.samples if chosen is None else chosen)))
        return drawn if chosen is None else chosen[drawn]

    def order_beside(self, pool: Tensor, count: int) -> Tensor:
        """``count`` shuffled positions of a phase's second ``pool`` int64 [m']: all of them again and again."""
        passes = -(-count // len(pool))
        drawn = [torch.from_numpy(self._order_beside.permutation(len(pool))) for _ in range(passes)]
        return pool[torch.cat(drawn)[:count]]

    def crops(
        self, transform: Preparation, count: int, stored: tuple[int, ...], *, view: int = 0, beside: bool = False
    ) -> Augmentation | None:
        """Crops and flips of the next ``count`` images, whose stored size is ``stored`` (H', W').

        Each ``view`` of an image, from 0, has a stream of its own; so have those of a phase's second pool.
        """
        if not transform.random(stored):
            return None
        rng = self._crops if view == 0 and not beside else self._crops_of(view, beside)
        return transform.draw(rng, count, stored)

    def mixing(self, size: int) -> Mixing | None:
        """How the next batch of ``size`` samples is mixed; None if it is not."""
        if self._mixes_nothing:
            return None
        return checked.mixing(self.batch, self.batch.mixing(self._mixing, size, self.task.broadcast.stage), size)

    def of_terms(self, size: int) -> dict[str, Any]:
        """Each loss term's random draw for the next batch of ``size`` samples, by the term's name."""
        return {
            name: None if rng is None else term.draw(rng, size)
            for (name, term), rng in zip(self.terms.items(), self._terms, strict=True)
        }

    @cached_property
    def _order(self) -> np.random.Generator:
        return self.task.engine_stream(OfEngine.BATCHES)

    @cached_property
    def _crops(self) -> np.random.Generator:
        return self.task.engine_stream(OfEngine.CROPS)

    def _crops_of(self, view: int, beside: bool) -> np.random.Generator:
        if (view, beside) not in self._views:
            purpose = OfEngine.CROPS_BESIDE if beside else OfEngine.CROPS_OF_VIEW
            self._views[view, beside] = self.task.engine_stream(purpose, view)
        return self._views[view, beside]

    @cached_property
    def _order_beside(self) -> np.random.Generator:
        return self.task.engine_stream(OfEngine.BATCHES_BESIDE)

    @cached_property
    def _mixing(self) -> np.random.Generator:
        return self.task.engine_stream(OfEngine.MIXING)

    @cached_property
    def _mixes_nothing(self) -> bool:
        return not self.batch.overrides("mixing")

    @cached_property
    def _terms(self) -> list[np.random.Generator | None]:
        return [
            self.task.engine_stream(OfEngine.TERM, of=name) if term.overrides("draw") else None
            for name, term in self.terms.items()
        ]
