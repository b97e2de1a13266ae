"""Protocols for executing client jobs: the job, blocks of reduced results, the executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from flnl.core.messages import ClientTask
from flnl.core.payload import T, V
from flnl.core.tally import Tally
from flnl.core.usage import Usage

if TYPE_CHECKING:
    from flnl.core.model import Model

R_co = TypeVar("R_co", covariant=True)


class ClientJob(Protocol[R_co]):
    """A picklable function that runs on a client."""

    def __call__(self, network: Model, task: ClientTask) -> R_co:
        """Run the job for one client; return its result. The network may hold any parameters, before and after."""
        ...


@dataclass(frozen=True)
class Block(Generic[V, R_co]):
    """The reduced results of a few tasks: the reduction's value, and what is left of each result."""

    value: V
    results: list[R_co]


class ExecutorChoice:
    """Marker base class: a configured choice between executors, resolved once the run's work is known."""


class Executor(Protocol):
    """Runs a job on many clients."""

    def map(
        self, job: ClientJob[T], tasks: Sequence[ClientTask], reduce: Callable[[list[T]], Block[V, T]]
    ) -> Iterator[Block[V, T]]:
        """Run ``job`` on all tasks; yield reduced blocks of ``BLOCK`` tasks, in the order of ``tasks``.

        Block boundaries are fixed, so sums are bit-identical for any number of workers.
        """
        ...

    def groups(self, job: ClientJob[Any], tasks: Sequence[ClientTask]) -> list[list[int]]:
        """Partition of the tasks' positions into groups that run together; single tasks unless clients are stacked.

        It depends on the job, the tasks and the configuration, never on how many workers share the groups out.
        """
        return [[position] for position in range(len(tasks))]

    def run_group(self, job: ClientJob[T], tasks: Sequence[ClientTask]) -> list[T]:
        """Run one of ``groups``, without dividing it again; return the result of each task, in order."""
        return [result for block in self.map(job, tasks, as_list) for result in block.results]

    def pop_tally(self) -> Tally:
        """The samples that have passed the run's network since the last call, in this process and in workers."""
        return Tally()

    def usage(self) -> Usage:
        """What worker processes have used so far."""
        return Usage()

    def settings(self) -> dict[str, Any]:
        """Effective settings for the run's record, besides the executor's name."""
        return {}

    def close(self) -> None:
        """Release resources held between calls of ``map``. A later call may acquire them again."""
        return


def described(executor: Executor) -> dict[str, Any]:
    """The record of an executor: its name and settings."""
    return {"name": type(executor).__name__.lower(), **executor.settings()}


BLOCK = 5
"""Number of clients in a block."""


def as_list(results: list[T]) -> Block[None, T]:
    """The reduction that keeps every result."""
    return Block(None, results)
