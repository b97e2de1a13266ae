"""Many clients at once in this process, as one network; what cannot be stacked runs one by one."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, TypeVar, cast

from annotated_types import Ge, MultipleOf

from src.core import BLOCK, Block, ClientJob, ClientResult, ClientTask, Executor
from src.local.sgd import LocalTraining
from src.network import Network
from src.ranges import Positive
from src.stacked.network import stacked
from src.stacked.refusal import NotStackable
from src.stacked.suitable import clients_in, why_not
from src.stacked.training import train

log = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V")

GIB = 2**30
POOLED = 0.25
"""The share of the memory that a stack's images may take."""


@dataclass(frozen=True)
class Stacked(Executor):
    """Trains a cohort in stacks of clients, on one network; other jobs run one client after another.

    How a cohort is cut depends on the cohort and the configuration alone.
    """

    network: Network
    stack: Annotated[int, Ge(BLOCK), MultipleOf(BLOCK)]  # clients at once, at most
    memory: Positive  # GiB that a stack may take
    _said: set[str] = field(default_factory=set, repr=False, compare=False)

    def map(
        self, job: ClientJob[T], tasks: Sequence[ClientTask], reduce: Callable[[list[T]], Block[V, T]]
    ) -> Iterator[Block[V, T]]:
        """Reduced blocks of ``BLOCK`` tasks, in order."""
        asked: Any = job
        training = asked if isinstance(asked, LocalTraining) else None
        at_once = 0 if training is None else self._at_once(training, tasks)
        for first in range(0, len(tasks), at_once or BLOCK):
            together = tasks[first : first + (at_once or BLOCK)]
            results: list[T] | None = None
            if training is not None and at_once and len(together) > 1:
                results = cast("list[T] | None", self._trained(training, together))
            for start in range(0, len(together), BLOCK):
                block = slice(start, start + BLOCK)
                yield reduce(
                    [job(self.network, task) for task in together[block]] if results is None else results[block]
                )

    def groups(self, job: ClientJob[Any], tasks: Sequence[ClientTask]) -> list[list[int]]:
        """The stacks; single clients where they run one by one."""
        at_once = (self._at_once(job, tasks) if isinstance(job, LocalTraining) else 0) or 1
        return [list(range(first, min(first + at_once, len(tasks)))) for first in range(0, len(tasks), at_once)]

    def settings(self) -> dict[str, Any]:
        """How a cohort is cut."""
        return {"stack": self.stack, "memory": self.memory}

    def _at_once(self, job: LocalTraining, tasks: Sequence[ClientTask]) -> int:
        """Clients to a stack; 0 where they run one by one."""
        if len(tasks) < 2:
            return 0
        reason = why_not(job, self.network)
        if reason is None:
            found = clients_in(job, self.network, self.stack, int(self.memory * GIB * (1 - POOLED)))
            if found:
                return found
            reason = f"{BLOCK} clients at once would take more than executor.memory={self.memory:g} GiB"
        self._say(reason)
        return 0

    def _trained(self, job: LocalTraining, tasks: Sequence[ClientTask]) -> list[ClientResult] | None:
        """The clients' results; None where they turn out not to be stackable."""
        network = self.network
        try:
            fits = train(job, network, stacked(network).network, tasks, self._pooled())
        except NotStackable as refusal:
            self._say(str(refusal))
            return None
        results = []
        for task, fit in zip(tasks, fits, strict=True):
            if job.reads_models:
                network.load(fit.params)
            results.append(job.report(network, task, fit))
        return results

    def _pooled(self) -> int:
        """How many images a stack holds."""
        transform, width = self.network.transform, self.network.dtype.itemsize
        each = len(transform.mean) * transform.size[0] * transform.size[1] * width
        return int(self.memory * GIB * POOLED / each)

    def _say(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            log.warning("executor=stacked: clients run one by one, because %s; this is said once", reason)
