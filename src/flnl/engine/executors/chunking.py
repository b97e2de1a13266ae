"""Splits a cohort into pieces of work: whole blocks at first, single clients at the end to balance the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flnl.core.execution import BLOCK


@dataclass(frozen=True)
class Piece:
    """A piece of work for one worker: ``positions`` of tasks, in order, and how these are grouped.

    The worker reduces whole blocks; for other pieces it returns results, and the parent reduces them in order.
    """

    positions: tuple[int, ...]
    whole: bool
    groups: tuple[tuple[int, ...], ...]  # tasks that run together, as indices into ``positions``

    @classmethod
    def of(cls, groups: Sequence[Sequence[int]], *, whole: bool) -> Piece:
        """The piece of these groups of positions."""
        positions = tuple(sorted(i for group in groups for i in group))
        index = {position: i for i, position in enumerate(positions)}
        return cls(positions, whole, tuple(tuple(index[i] for i in group) for group in groups))


def plan(sizes: Sequence[int], groups: Sequence[Sequence[int]], workers: int) -> list[Piece]:
    """Split tasks into pieces, in the order of dispatch, the largest first.

    A block stays whole if it is of a single group, or if the smaller blocks keep the other workers busy for as long as
    it takes; the others are split into groups. The split does not affect results: groups are given, and a block is
    always reduced in the order of its tasks.

    Args:
        sizes: number of samples of each task.
        groups: positions that must run together, from ``Executor.groups``.
        workers: number of workers.
    """

    def samples(positions: Sequence[int]) -> int:
        return sum(sizes[i] for i in positions)

    pieces, left = [], sum(sizes)
    for positions in sorted(_unions(len(sizes), groups), key=samples, reverse=True):
        left -= samples(positions)
        held = set(positions)
        together = [group for group in groups if group[0] in held]
        if len(together) == 1 or left >= samples(positions) * (workers - 1):
            pieces.append(Piece.of(together, whole=True))
        else:
            pieces += [Piece.of([group], whole=False) for group in together]
    return sorted(pieces, key=lambda piece: samples(piece.positions), reverse=True)


def _unions(count: int, groups: Sequence[Sequence[int]]) -> list[tuple[int, ...]]:
    """The smallest sets of positions that consist of whole blocks and of whole groups, each in order."""
    owner = list(range(count))  # for each position, the first position of its set

    def join(positions: Sequence[int]) -> None:
        owners = {owner[i] for i in positions}
        first = min(owners)
        for i, start in enumerate(owner):
            if start in owners:
                owner[i] = first

    for first in range(0, count, BLOCK):
        join(range(first, min(first + BLOCK, count)))
    for group in groups:
        if len({owner[i] for i in group}) > 1:
            join(group)
    return [tuple(i for i, start in enumerate(owner) if start == first) for first in sorted(set(owner))]
