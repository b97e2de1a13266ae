"""How a cohort is cut into pieces of work: whole blocks while there is plenty, single clients for an even end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flnl.core.execution import BLOCK


@dataclass(frozen=True)
class Piece:
    """What a worker is handed at once: ``positions`` of tasks, in order.

    Whole blocks are reduced by the worker; the results of other pieces go to the parent, which reduces them in order.
    """

    positions: tuple[int, ...]
    whole: bool


def plan(sizes: Sequence[int], groups: Sequence[Sequence[int]], workers: int) -> list[Piece]:
    """Pieces in the order of handing out, the largest first.

    A block stays whole where the smaller ones together keep the other workers busy for as long as it takes; the rest
    are handed out a group at a time. Which pieces there are moves no bit: a block is reduced in the order of its
    tasks, where it runs or in the parent.

    Args:
        sizes: samples of each task.
        groups: positions that have to be run together, as ``Executor.groups`` gives them.
        workers: how many there are.
    """

    def samples(positions: Sequence[int]) -> int:
        return sum(sizes[i] for i in positions)

    pieces, left = [], sum(sizes)
    for positions in sorted(_unions(len(sizes), groups), key=samples, reverse=True):
        left -= samples(positions)
        if left >= samples(positions) * (workers - 1):
            pieces.append(Piece(positions, True))
        else:
            pieces += [Piece(tuple(group), False) for group in groups if group[0] in positions]
    return sorted(pieces, key=lambda piece: samples(piece.positions), reverse=True)


def _unions(count: int, groups: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The smallest sets of positions that are both whole blocks and whole groups, each in order."""
    owner = list(range(count))  # of each position, the first position of its set

    def join(positions: Sequence[int]) -> None:
        owners = {owner[i] for i in positions}
        first = min(owners)
        for i, own in enumerate(owner):
            if own in owners:
                owner[i] = first

    for first in range(0, count, BLOCK):
        join(range(first, min(first + BLOCK, count)))
    for group in groups:
        if len({owner[i] for i in group}) > 1:
            join(group)
    return [tuple(i for i, own in enumerate(owner) if own == first) for first in sorted(set(owner))]
