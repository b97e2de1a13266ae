"""``Executor.map`` on many workers: dispatches units, orders their results, and reruns the units of lost workers."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, is_dataclass, replace
from functools import reduce as folded
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.execution import BLOCK, Block, ClientJob, Executor, as_list, described
from flnl.core.images import Images
from flnl.core.messages import Broadcast, ClientState, ClientTask, Samples
from flnl.core.model import Model
from flnl.core.payload import Params
from flnl.core.tally import Tally
from flnl.core.usage import Usage
from flnl.engine.executors.chunking import WorkUnit, plan
from flnl.engine.executors.serialization import Shared, decode, encode
from flnl.engine.executors.worker_context import Answer, Failure, Inner
from flnl.engine.network import Network

log = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V")

Signature = dict[str, tuple[torch.Size, torch.dtype]]

EVALUATION = -1
"""Stands for a client in the tasks of an evaluation, which has none."""
DEATHS = 3
"""The run fails after the same clients have killed this many workers."""


class WorkerLostError(Exception):
    """Workers keep dying while they run the same clients."""


@dataclass(frozen=True)
class LostWorker:
    """Stands for an answer: the worker died."""

    who: str  # which worker
    how: str  # how it ended


class WorkerPool(Protocol):
    """Workers numbered from 0; each handles one unit of work at a time and starts when it gets its first."""

    workers: int

    def begin(self, params: Params, call: bytes) -> None:
        """Start a call of ``map``; no unit of an earlier call is outstanding."""
        ...

    def submit(self, worker: int, work: bytes) -> None:
        """Give an idle worker a unit of work; replace the worker if it was lost."""
        ...

    def answers(self) -> list[tuple[int, bytes | LostWorker]]:
        """Wait for at least one answer; return the answers that have arrived, with their workers."""
        ...

    def abandon(self) -> None:
        """Drop all outstanding work and end the workers that have it."""
        ...

    def close(self) -> None:
        """End all workers."""
        ...


def run(
    pool: WorkerPool,
    shared: Shared,
    groups: Sequence[Sequence[int]],
    job: ClientJob[T],
    tasks: Sequence[ClientTask],
    reduce: Callable[[list[T]], Block[V, T]],
    spent: Callable[[int, Answer], object],
) -> Iterator[Block[V, T]]:
    """Run one call of ``map``; yield its blocks in order.

    ``spent`` is called with each answer and its worker.

    Raises:
        WorkerLostError: if the same clients have killed ``DEATHS`` workers.
        Exception: what the job raised, with the worker's traceback as its cause.
    """
    waiting = plan([len(task.samples) for task in tasks], groups, pool.workers)
    messages = _for_all(tasks)
    pool.begin(shared.params, encode((job, reduce, messages), shared))
    shared = replace(shared, messages=messages)
    idle, at_work, deaths = list(range(pool.workers)), dict[int, WorkUnit](), Counter[WorkUnit]()
    order = _Order(len(tasks), reduce)
    try:
        while not order.complete:
            while idle and waiting:
                worker, unit = idle.pop(0), waiting.pop(0)
                at_work[worker] = unit
                work = [tasks[i] for i in unit.positions], unit.groups, unit.whole
                pool.submit(worker, encode(work, shared))
            yield from order.ready()  # workers continue meanwhile
            for worker, answer in pool.answers() if at_work else ():
                unit = at_work.pop(worker)
                idle.append(worker)
                if isinstance(answer, LostWorker):
                    deaths[unit] += 1
                    _report_loss(answer, sorted({tasks[i].client for i in unit.positions}), deaths[unit])
                    waiting.insert(0, unit)
                    continue
                decoded = decode(answer, shared)
                if isinstance(decoded, Failure):
                    raise decoded.error from decoded.cause
                spent(worker, decoded)
                order.take(unit, decoded.results)
    finally:
        if at_work:
            pool.abandon()


def _for_all(tasks: Sequence[ClientTask]) -> list[Any]:
    """The messages that all tasks have: the very object, not an equal one. A number costs no more than its name."""
    rest = [task.broadcast.extras for task in tasks[1:]]
    messages = [message for message in tasks[0].broadcast.extras if is_dataclass(message)]
    return [message for message in messages if all(of.get(type(message)) is message for of in rest)]


def _report_loss(lost: LostWorker, clients: Sequence[int], deaths: int) -> None:
    """Log the loss of a worker.

    Raises:
        WorkerLostError: at the ``DEATHS``-th loss with the same clients.
    """
    running = "an evaluation" if clients == [EVALUATION] else f"client {', '.join(map(str, clients))}"
    if deaths == DEATHS:
        raise WorkerLostError(
            f"{running} cost {DEATHS} workers; the last one {lost.how}. If memory ran out, use fewer workers: "
            "executor.workers"
        )
    log.warning("%s %s while it ran %s; a new worker replaces it and runs them again", lost.who, lost.how, running)


class _Order:
    """Collects blocks and single results in any order, and releases blocks in the order of tasks."""

    def __init__(self, count: int, reduce: Callable[[list[Any]], Block[Any, Any]]) -> None:
        self._count, self._reduce = count, reduce
        self._blocks: dict[int, Block[Any, Any]] = {}  # by first position
        self._results: dict[int, Any] = {}  # by position
        self._next = 0

    @property
    def complete(self) -> bool:
        """Whether all blocks have been released."""
        return self._next >= self._count

    def _positions(self) -> range:
        return range(self._next, min(self._next + BLOCK, self._count))

    def take(self, unit: WorkUnit, outcome: list[Any]) -> None:
        """Add the outcome of a unit: its blocks if it was whole, else its results."""
        if unit.whole:
            self._blocks |= zip(unit.positions[::BLOCK], outcome, strict=True)
        else:
            self._results |= zip(unit.positions, outcome, strict=True)

    def ready(self) -> Iterator[Block[Any, Any]]:
        """Release the next blocks, up to the first that is incomplete."""
        while not self.complete:
            if (block := self._blocks.pop(self._next, None)) is None:
                if not all(i in self._results for i in self._positions()):
                    return
                block = self._reduce([self._results.pop(i) for i in self._positions()])
            self._next += BLOCK
            yield block


@dataclass(frozen=True)
class Score:
    """The job of an evaluation: one output of the received model on the samples of a task."""

    output: str

    def __call__(self, network: Model, task: ClientTask) -> Tensor:
        """The output [n, ...]."""
        return network.received(task, output=self.output)


@dataclass(frozen=True)
class PooledExecutor(Executor):
    """An executor that keeps a pool of workers for the whole run.

    Workers start at the first call with work for several of them, and restart when tasks refer to new images. A single
    client or a single stack cannot be split and runs in this process, on this process's network.
    """

    network: Network
    inner: Inner
    _here: Executor = field(init=False, repr=False, compare=False)
    _pools: list[tuple[WorkerPool, list[Images], Signature]] = field(
        init=False, repr=False, compare=False, default_factory=list
    )  # at most one
    _usage: dict[int, Usage] = field(init=False, repr=False, compare=False, default_factory=dict)  # by worker

    def __post_init__(self) -> None:
        """Build the inner executor on this process's network, too.

        Raises:
            UserError: if it refuses its settings.
        """
        try:
            here = self.inner(self.network)
        except UserError as error:
            raise UserError(str(error).replace("executor.", "executor.inner.")) from None
        object.__setattr__(self, "_here", here)

    @property
    @abstractmethod
    def count(self) -> int:
        """Maximum number of workers."""

    @property
    def shares_evaluation(self) -> bool:
        """Whether workers share evaluations: where it costs little to restart them for the test samples."""
        return False

    @abstractmethod
    def open(self, images: Sequence[Images], params: Params) -> WorkerPool:
        """Create a pool that shares these images, for parameters of these shapes and dtypes."""

    def groups(self, job: ClientJob[Any], tasks: Sequence[ClientTask]) -> list[list[int]]:
        """The groups of the inner executor."""
        return self._here.groups(job, tasks)

    def run_group(self, job: ClientJob[T], tasks: Sequence[ClientTask]) -> list[T]:
        """Run a group in this process."""
        return self._here.run_group(job, tasks)

    def map(
        self, job: ClientJob[T], tasks: Sequence[ClientTask], reduce: Callable[[list[T]], Block[V, T]]
    ) -> Iterator[Block[V, T]]:
        """Blocks in order, each reduced in its worker or, if it was split between workers, here."""
        groups = self.groups(job, tasks)
        if self.count < 2 or len(groups) < 2:
            yield from self._here.map(job, tasks, reduce)
            return
        pool, images = self._pool_of(tasks)
        shared = Shared(images, tasks[0].broadcast.params, self.network.device)
        yield from run(pool, shared, groups, job, tasks, reduce, self._spent)

    def scores(self, images: Images, index: Tensor, output: str) -> Tensor:
        """One output of the network on the samples at ``index`` [n], as one process computes it.

        Each worker gets two shares, which are batches of that process, so that none waits long for another.
        """
        batches = index.split(self.network.score_batch)
        shares = torch.arange(len(batches)).tensor_split(min(len(batches), 2 * self.count))
        sent = Broadcast(0, 0, self.network.params())
        parts = [torch.cat([batches[i] for i in share.tolist()]) for share in shares]
        tasks = [
            ClientTask(EVALUATION, Samples(images, part, torch.zeros_like(part)), sent, ClientState(), 0)
            for part in parts
        ]
        return torch.cat([scores for block in self.map(Score(output), tasks, as_list) for scores in block.results])

    def _spent(self, worker: int, answer: Answer) -> None:
        self.network.meter.add(answer.tally)
        self._usage[worker] = answer.usage.after(self._usage.get(worker, Usage()))

    def pop_tally(self) -> Tally:
        """The samples that have passed the network since the last call, here and in workers."""
        return self.network.meter.pop()

    def usage(self) -> Usage:
        """What the workers have used so far; a worker and the one that replaces it are one."""
        return folded(Usage.beside, self._usage.values(), Usage())

    def _pool_of(self, tasks: Sequence[ClientTask]) -> tuple[WorkerPool, list[Images]]:
        params = tasks[0].broadcast.params
        images = list({id(task.samples.images): task.samples.images for task in tasks}.values())
        signature = {name: (p.shape, p.dtype) for name, p in params.items()}
        for pool, known, like in self._pools:
            new = [candidate for candidate in images if not any(candidate is old for old in known)]
            if not new and signature == like:
                return pool, known
            images = [*known, *new]
        self._end_workers()
        self._pools.append((self.open(images, params), images, signature))
        self.network.by_workers = self.scores if self.shares_evaluation else None
        return self._pools[0][:2]

    def settings(self) -> dict[str, Any]:
        """The effective settings."""
        return {"workers": self.count, "inner": described(self._here)}

    def close(self) -> None:
        """End the workers."""
        self._end_workers()

    def _end_workers(self) -> None:
        self.network.by_workers = None
        while self._pools:
            self._pools.pop()[0].close()
