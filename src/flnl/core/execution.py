"""How client jobs are executed: the job, the blocks that results are reduced in, the executor."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from flnl.core.messages import ClientTask
from flnl.core.payload import T, V

if TYPE_CHECKING:
    from flnl.core.model import Model

R_co = TypeVar("R_co", covariant=True)


class ClientJob(Protocol[R_co]):
    """Anything that a client can be asked to do; picklable."""

    def __call__(self, network: Model, task: ClientTask) -> R_co:
        """The job's result for one client."""
        ...


@dataclass(frozen=True)
class Block(Generic[V, R_co]):
    """The outcome of a few tasks: what their results were reduced to, and each of them without it."""

    value: V
    results: list[R_co]


class ExecutorChoice:
    """Marks what an executor is chosen from once the work is known, which may be configured in the place of one."""


class Executor(Protocol):
    """Runs a job on many clients; nothing else knows how."""

    def map(
        self, job: ClientJob[T], tasks: Sequence[ClientTask], reduce: Callable[[list[T]], Block[V, T]]
    ) -> Iterator[Block[V, T]]:
        """Blocks of ``BLOCK`` tasks, in the order of ``tasks``, each reduced where it ran.

        The cuts are fixed, so that sums have the same bits for any number of workers.
        """
        ...

    def groups(self, job: ClientJob[Any], tasks: Sequence[ClientTask]) -> list[list[int]]:
        """Positions of the tasks that run together, each once: one by one, unless the executor stacks clients.

        The groups of some whole groups' tasks, in order, are those groups, so that they may run in different places.
        """
        return [[position] for position in range(len(tasks))]

    def settings(self) -> dict[str, Any]:
        """What a record should say of it besides its name."""
        return {}

    def close(self) -> None:
        """Let go of whatever outlives a call. The next one may take it up again."""
        return


def described(executor: Executor) -> dict[str, Any]:
    """An executor as a record has it: its name and settings."""
    return {"name": type(executor).__name__.lower(), **executor.settings()}


BLOCK = 5
"""Clients to a block."""


def as_list(results: list[T]) -> Block[None, T]:
    """The reduction that keeps every result."""
    return Block(None, results)
