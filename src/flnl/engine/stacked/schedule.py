"""Who steps together: batches of equal size, in each client's own order, without padding.

Clients are ranked by their number of full batches, so that those which still have one are always the first few: a
view, not a copy. The short last batches of an epoch follow, those of equal size together.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Run:
    """Consecutive steps of the same clients in an epoch."""

    members: tuple[int, ...]  # clients, by rank
    first: tuple[int, ...]  # where in its epoch each member's samples begin
    number: int  # of the first batch in its epoch, from 0; where members differ, that of the first member
    steps: int
    size: int  # of each batch

    def where(self, starts: Sequence[int]) -> Tensor:
        """Places of the samples int64 [steps, K, size]; the epoch of client k begins at ``starts[k]``."""
        begin = torch.tensor([starts[k] + first for k, first in zip(self.members, self.first, strict=True)])
        return begin[:, None] + torch.arange(self.steps * self.size).view(self.steps, 1, self.size)


def ranked(sizes: Sequence[Sequence[int]], batch_size: int) -> list[int]:
    """Clients in the order of a stack, from the sizes of each one's batches: those with many full batches first."""
    return sorted(range(len(sizes)), key=lambda k: (-_full(sizes[k], batch_size), sizes[k][-1], k))


def runs(sizes: Sequence[Sequence[int]], batch_size: int, *, same_number: bool) -> list[Run]:
    """The steps of an epoch, from the sizes of each client's batches by rank.

    With ``same_number`` the batches of a step have the same number in their epochs, as terms may ask for it.
    """
    full = [_full(own, batch_size) for own in sizes]
    found = []
    done = 0
    while full and done < full[0]:
        active = sum(count > done for count in full)
        until = full[active - 1]
        found.append(Run(tuple(range(active)), (done * batch_size,) * active, done, until - done, batch_size))
        done = until
    last: dict[tuple[int, int], list[int]] = {}
    for k, own in enumerate(sizes):
        if len(own) > full[k]:
            last.setdefault((own[-1], full[k] if same_number else 0), []).append(k)
    for (size, _), members in last.items():
        first = tuple(full[k] * batch_size for k in members)
        found.append(Run(tuple(members), first, full[members[0]], 1, size))
    return found


def _full(sizes: Sequence[int], batch_size: int) -> int:
    return sum(size == batch_size for size in sizes)
