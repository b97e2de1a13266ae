"""Schedules which clients step together: equal batch sizes, each client's batches in order, no padding.

Clients are ranked by their number of full batches, so the clients with full batches left are always the first ranks: a
view of the stack, not a copy. The short last batches of an epoch follow, grouped by size.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Run:
    """Consecutive steps of the same clients in an epoch."""

    members: tuple[int, ...]  # clients, by rank
    first: tuple[int, ...]  # position in the epoch of each member's first sample
    number: int  # number of the first batch in its epoch, from 0; the first member's, if members differ
    steps: int
    size: int  # of each batch

    @property
    def kind(self) -> tuple[int, int]:
        """Number of clients, and size of their batches."""
        return len(self.members), self.size

    def where(self, starts: Sequence[int]) -> Tensor:
        """Positions of the samples, int64 [steps, K, size]; the epoch of client k begins at ``starts[k]``."""
        begin = torch.tensor([starts[k] + first for k, first in zip(self.members, self.first, strict=True)])
        return begin[:, None] + torch.arange(self.steps * self.size).view(self.steps, 1, self.size)


def ranked(sizes: Sequence[Sequence[int]], batch_size: int) -> list[int]:
    """Rank clients by the sizes of their batches: those with the most full batches first."""
    return sorted(range(len(sizes)), key=lambda k: (-_full(sizes[k], batch_size), sizes[k][-1], k))


def runs(sizes: Sequence[Sequence[int]], batch_size: int, *, same_number: bool) -> list[Run]:
    """The steps of an epoch, from the sizes of each client's batches in it, by rank; none if it has ended before.

    With ``same_number``, all batches of a step have the same number within their epochs, since terms may read it.
    """
    full = [_full(batches, batch_size) for batches in sizes]
    scheduled = []
    done = 0
    while active := [k for k, count in enumerate(full) if count > done]:
        until = min(full[k] for k in active)
        scheduled.append(Run(tuple(active), (done * batch_size,) * len(active), done, until - done, batch_size))
        done = until
    last: dict[tuple[int, int], list[int]] = {}
    for k, batches in enumerate(sizes):
        if len(batches) > full[k]:
            last.setdefault((batches[-1], full[k] if same_number else 0), []).append(k)
    for (size, _), members in last.items():
        first = tuple(full[k] * batch_size for k in members)
        scheduled.append(Run(tuple(members), first, full[members[0]], 1, size))
    return scheduled


def _full(sizes: Sequence[int], batch_size: int) -> int:
    return sizes.count(batch_size)
