"""Runs one client after another in this process: for debugging, and the reference for the other executors."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from flnl.core.execution import BLOCK, Block, ClientJob, Executor
from flnl.core.messages import ClientTask
from flnl.core.tally import Tally
from flnl.engine.network import Network

T = TypeVar("T")
V = TypeVar("V")


@dataclass(frozen=True)
class Sequential(Executor):
    """Runs tasks in order on one network."""

    network: Network

    def map(
        self, job: ClientJob[T], tasks: Sequence[ClientTask], reduce: Callable[[list[T]], Block[V, T]]
    ) -> Iterator[Block[V, T]]:
        """Reduced blocks of ``BLOCK`` tasks, in order."""
        for first in range(0, len(tasks), BLOCK):
            yield reduce([job(self.network, task) for task in tasks[first : first + BLOCK]])

    def pop_tally(self) -> Tally:
        """The samples that have passed the network since the last call."""
        return self.network.meter.pop()
