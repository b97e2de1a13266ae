"""A call of ``Executor.map`` on many workers: hand out, take back, put in order, and run again what was lost."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch

from flnl.core.execution import BLOCK, Block, ClientJob, Executor, described
from flnl.core.images import Images
from flnl.core.messages import ClientTask
from flnl.core.payload import Params
from flnl.engine.executors.chunking import Piece, plan
from flnl.engine.executors.serialization import Shared, decode, encode
from flnl.engine.executors.worker_context import Failure, Inner, RaisedInWorkerError
from flnl.engine.network import Network

log = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V")

Signature = dict[str, tuple[torch.Size, torch.dtype]]

DEATHS = 3
"""Workers that the same clients may cost before the run is given up."""


class WorkerLostError(Exception):
    """Workers keep dying of the same clients."""


@dataclass(frozen=True)
class Lost:
    """In place of an answer: the worker is gone."""

    who: str
    how: str


class Crew(Protocol):
    """Workers, numbered from 0, that have one piece of work in hand at most and start when they get their first."""

    workers: int

    def begin(self, params: Params, call: bytes) -> None:
        """A call begins; what was handed out in the last one has come back."""
        ...

    def hand(self, worker: int, work: bytes) -> None:
        """Give an idle worker something to do. One that was lost is replaced."""
        ...

    def answers(self) -> list[tuple[int, bytes | Lost]]:
        """What has come back, by worker; waits until something has."""
        ...

    def abandon(self) -> None:
        """Give up what is in hand, and the workers that have it."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


def run(
    crew: Crew,
    shared: Shared,
    groups: Sequence[Sequence[int]],
    job: ClientJob[T],
    tasks: Sequence[ClientTask],
    reduce: Callable[[list[T]], Block[V, T]],
) -> Iterator[Block[V, T]]:
    """The blocks of a call, in order.

    Raises:
        WorkerLostError: if the same clients have cost ``DEATHS`` workers.
        Exception: what the job raised, with the worker's traceback as its cause.
    """
    waiting = plan([len(task.samples) for task in tasks], groups, crew.workers)
    crew.begin(shared.params, encode((job, reduce), shared))
    idle, in_hand, deaths = list(range(crew.workers)), dict[int, Piece](), Counter[Piece]()
    order = _Order(len(tasks), reduce)
    try:
        while not order.complete:
            while idle and waiting:
                worker, piece = idle.pop(0), waiting.pop(0)
                in_hand[worker] = piece
                crew.hand(worker, encode(([tasks[i] for i in piece.positions], piece.whole), shared))
            yield from order.ready()  # the workers go on meanwhile
            for worker, answer in crew.answers() if in_hand else ():
                piece = in_hand.pop(worker)
                idle.append(worker)
                if isinstance(answer, Lost):
                    deaths[piece] += 1
                    _say(answer, [tasks[i].client for i in piece.positions], deaths[piece])
                    waiting.insert(0, piece)
                    continue
                found = decode(answer, shared)
                if isinstance(found, Failure):
                    raise found.error from RaisedInWorkerError(found.trace)
                order.take(piece, found)
    finally:
        if in_hand:
            crew.abandon()


def _say(lost: Lost, clients: Sequence[int], deaths: int) -> None:
    """Say that a worker is gone, or that there is no point in another."""
    whose = f"client {', '.join(map(str, clients))}"
    if deaths == DEATHS:
        raise WorkerLostError(
            f"{whose} cost {DEATHS} workers, the last of which {lost.how}; if memory ran out, fewer workers need less: "
            "executor.workers"
        )
    log.warning("%s %s while it ran %s; another takes its place and runs them again", lost.who, lost.how, whose)


class _Order:
    """Blocks that have come back in any order, or in pieces, and go on in theirs."""

    def __init__(self, count: int, reduce: Callable[[list[Any]], Block[Any, Any]]) -> None:
        self._count, self._reduce = count, reduce
        self._blocks: dict[int, Block[Any, Any]] = {}  # by first position
        self._results: dict[int, Any] = {}  # by position
        self._next = 0

    @property
    def complete(self) -> bool:
        """Whether all have gone on."""
        return self._next >= self._count

    def _positions(self) -> range:
        return range(self._next, min(self._next + BLOCK, self._count))

    def take(self, piece: Piece, found: list[Any]) -> None:
        """What a piece came to: its blocks where it was whole, else its results."""
        if piece.whole:
            self._blocks |= zip(piece.positions[::BLOCK], found, strict=True)
        else:
            self._results |= zip(piece.positions, found, strict=True)

    def ready(self) -> Iterator[Block[Any, Any]]:
        """The blocks that are next and here."""
        while not self.complete:
            if (block := self._blocks.pop(self._next, None)) is None:
                if not all(i in self._results for i in self._positions()):
                    return
                block = self._reduce([self._results.pop(i) for i in self._positions()])
            self._next += BLOCK
            yield block


@dataclass(frozen=True)
class Crewed(Executor):
    """An executor that keeps a crew for the whole run.

    Workers start when there is first something to share out, and anew where tasks refer to other images than before.
    What cannot be shared out, a single client or a single stack, runs in this process, on its own network.
    """

    network: Network
    inner: Inner
    _here: Executor = field(init=False, repr=False, compare=False)
    _crews: list[tuple[Crew, list[Images], Signature]] = field(
        init=False, repr=False, compare=False, default_factory=list
    )  # the crew, once there is one

    def __post_init__(self) -> None:
        object.__setattr__(self, "_here", self.inner(self.network))

    @property
    @abstractmethod
    def count(self) -> int:
        """Workers at most."""

    @abstractmethod
    def open(self, images: Sequence[Images], params: Params) -> Crew:
        """A crew that knows these images, for parameters like these."""

    def groups(self, job: ClientJob[Any], tasks: Sequence[ClientTask]) -> list[list[int]]:
        """Those of the executor inside."""
        return self._here.groups(job, tasks)

    def map(
        self, job: ClientJob[T], tasks: Sequence[ClientTask], reduce: Callable[[list[T]], Block[V, T]]
    ) -> Iterator[Block[V, T]]:
        """Blocks in order, each reduced where it ran or, where that is better shared out, here."""
        groups = self.groups(job, tasks)
        if self.count < 2 or len(groups) < 2:
            yield from self._here.map(job, tasks, reduce)
            return
        crew, images = self._crew(tasks)
        shared = Shared(images, tasks[0].broadcast.params, self.network.device)
        yield from run(crew, shared, groups, job, tasks, reduce)

    def _crew(self, tasks: Sequence[ClientTask]) -> tuple[Crew, list[Images]]:
        params = tasks[0].broadcast.params
        images = list({id(task.samples.images): task.samples.images for task in tasks}.values())
        signature = {name: (p.shape, p.dtype) for name, p in params.items()}
        for crew, known, like in self._crews:
            new = [found for found in images if not any(found is old for old in known)]
            if not new and signature == like:
                return crew, known
            images = [*known, *new]
        self.close()
        self._crews.append((self.open(images, params), images, signature))
        return self._crews[0][:2]

    def settings(self) -> dict[str, Any]:
        """As they were settled here."""
        return {"workers": self.count, "inner": described(self._here)}

    def close(self) -> None:
        """End the workers."""
        while self._crews:
            self._crews.pop()[0].close()
