"""A client's training as data: how samples fall into batches, and what is random in each of them.

Every executor takes batches and draws from here, so that however a client is run it sees the same samples, crops,
mixtures and draws of terms. Each purpose has its own stream: switching one off leaves the others as they were.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flnl.core.messages import ClientTask
from flnl.core.parts import BatchRule, LossTerm
from flnl.data.transforms import Augmentation, Transform


def batch_sizes(count: int, batch_size: int, *, join_last_of_one: bool) -> list[int]:
    """The sizes of the batches that ``count`` samples make; the last may be short.

    A last batch of a single sample has no statistics for batch norm, so with ``join_last_of_one`` it joins the batch
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
    """``sizes`` of batches in runs of ``together``, which are prepared at once."""
    for first in range(0, len(sizes), together):
        yield sizes[first : first + together]


@dataclass(frozen=True)
class Draws:
    """One client's draws of one training, in their order; a stream is opened by the first who draws from it."""

    task: ClientTask
    batch: BatchRule
    terms: Mapping[str, LossTerm]

    def order(self, chosen: Tensor | None) -> Tensor:
        """The next epoch's positions int64 [n] in their order: those ``chosen``, or all samples."""
        drawn = torch.from_numpy(self._order.permutation(len(self.task.samples if chosen is None else chosen)))
        return drawn if chosen is None else chosen[drawn]

    def crops(self, transform: Transform, count: int, stored: tuple[int, int]) -> Augmentation | None:
        """How the next ``count`` images, stored at ``stored`` (H', W'), are cropped and flipped."""
        return transform.draw(self._crops, count, stored) if transform.random(stored) else None

    def mixing(self, size: int) -> Any:
        """What is random in how the next batch of ``size`` is mixed."""
        return None if self._mixes_nothing else self.batch.draw(self._mixing, size, self.task.broadcast.stage)

    def of_terms(self, size: int) -> dict[str, Any]:
        """What each term draws for the next batch of ``size``, by its name."""
        return {
            name: None if rng is None else term.draw(rng, size)
            for (name, term), rng in zip(self.terms.items(), self._terms, strict=True)
        }

    @cached_property
    def _order(self) -> np.random.Generator:
        return self.task.stream("batches")

    @cached_property
    def _crops(self) -> np.random.Generator:
        return self.task.stream("augmentation")

    @cached_property
    def _mixing(self) -> np.random.Generator:
        return self.task.stream("mixing")

    @cached_property
    def _mixes_nothing(self) -> bool:
        return inherits(self.batch, BatchRule, "draw")

    @cached_property
    def _terms(self) -> list[np.random.Generator | None]:
        return [
            None if inherits(term, LossTerm, "draw") else self.task.stream(f"term {name}")
            for name, term in self.terms.items()
        ]


def inherits(part: object, kind: type, method: str) -> bool:
    """Whether ``part`` has a method of its kind as the kind has it, which says nothing."""
    return getattr(type(part), method) is getattr(kind, method)
