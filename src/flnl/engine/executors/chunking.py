"""Splits a cohort into units of work: whole blocks at first, single clients at the end to balance the load."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flnl.core.execution import BLOCK


@dataclass(frozen=True)
class WorkUnit:
    """A unit of work for one worker: ``positions`` of tasks, in order, and how these are grouped.

    The worker reduces whole blocks; for other units it returns results, and the parent reduces them in order.
    """

    positions: tuple[int, ...]
    whole: bool
    groups: tuple[tuple[int, ...], ...]  # tasks that run together, as indices into ``positions``

    @classmethod
    def of(cls, groups: Sequence[Sequence[int]], *, whole: bool) -> WorkUnit:
        """The unit of these groups of positions."""
        positions = tuple(sorted(i for group in groups for i in group))
        index = {position: i for i, position in enumerate(positions)}
        return cls(positions, whole, tuple(tuple(index[i] for i in group) for group in groups))


def plan(sizes: Sequence[int], groups: Sequence[Sequence[int]], workers: int) -> list[WorkUnit]:
    """Split tasks into units, in the order of dispatch, the largest first.

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

    units, left = [], sum(sizes)
    for positions, together in sorted(_unions(len(sizes), groups), key=lambda union: samples(union[0]), reverse=True):
        left -= samples(positions)
        if len(together) == 1 or left >= samples(positions) * (workers - 1):
            units.append(WorkUnit.of(together, whole=True))
        else:
            units += [WorkUnit.of([group], whole=False) for group in together]
    return sorted(units, key=lambda unit: samples(unit.positions), reverse=True)


def _unions(count: int, groups: Sequence[Sequence[int]]) -> list[tuple[list[int], list[Sequence[int]]]]:
    """The smallest sets of positions that consist of whole blocks and of whole groups, in order, with their groups."""
    parents = list(range(-(-count // BLOCK)))  # of each block, an earlier one of its set, or itself

    def first_of(position: int) -> int:
        block = position // BLOCK
        while parents[block] != block:
            parents[block] = block = parents[parents[block]]
        return block

    for group in groups:
        for one in group[1:]:
            low, high = sorted((first_of(group[0]), first_of(one)))
            parents[high] = low
    unions: dict[int, tuple[list[int], list[Sequence[int]]]] = {}
    for position in range(count):
        unions.setdefault(first_of(position), ([], []))[0].append(position)
    for group in groups:
        unions[first_of(group[0])][1].append(group)
    return list(unions.values())
