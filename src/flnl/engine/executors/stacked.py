"""Many clients at once in this process, as one network; what cannot be stacked runs one by one."""

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Annotated, Any, Literal, TypeVar, cast

from annotated_types import Ge, Interval, MultipleOf

from flnl.core.errors import UserError
from flnl.core.execution import BLOCK, Block, ClientJob, Executor
from flnl.core.messages import ClientResult, ClientTask
from flnl.core.ranges import Positive
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.stacked.eligibility import clients_in, why_not
from flnl.engine.stacked.errors import NotStackable
from flnl.engine.stacked.graph import CudaGraph, Graphs
from flnl.engine.stacked.network import stacked
from flnl.engine.stacked.training import train

log = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V")

GIB = 2**30
MEMORY = {"cpu": 1.0, "cuda": 16.0}
"""GiB that a stack may take on each kind of device, where nobody says."""
POOLED = 0.25
"""The share of the memory that a stack's images may take."""
Few = Annotated[int, Interval(ge=1, lt=BLOCK)]
Blocks = Annotated[int, Ge(BLOCK), MultipleOf(BLOCK)]


@dataclass(frozen=True)
class Stacked(Executor):
    """Trains a cohort in stacks of clients, on one network; other jobs run one client after another.

    How a cohort is cut depends on the cohort and the configuration alone.
    """

    network: Network
    stack: Few | Blocks  # clients at once, at most
    memory: Positive | None  # GiB that a stack may take; None for what ``MEMORY`` says
    graphs: Literal["auto"] | bool = (
        "auto"  # whether steps are CUDA graphs; a record from before there were any is silent
    )
    _said: set[str] = field(default_factory=set, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse what the device cannot do.

        Raises:
            UserError: if graphs are asked for on a CPU.
        """
        if self.graphs is True and self.network.device.type != "cuda":
            raise UserError(
                "executor.graphs=true, but this run is on a CPU, and CUDA graphs are a GPU's: use executor.graphs=auto"
            )

    def map(
        self, job: ClientJob[T], tasks: Sequence[ClientTask], reduce: Callable[[list[T]], Block[V, T]]
    ) -> Iterator[Block[V, T]]:
        """Reduced blocks of ``BLOCK`` tasks, in order."""
        results = self._results(job, tasks)
        while block := list(islice(results, BLOCK)):
            yield reduce(block)

    def groups(self, job: ClientJob[Any], tasks: Sequence[ClientTask]) -> list[list[int]]:
        """The stacks; single clients where they run one by one."""
        at_once = (self._at_once(job, tasks) if isinstance(job, LocalTraining) else 0) or 1
        return [list(range(first, min(first + at_once, len(tasks)))) for first in range(0, len(tasks), at_once)]

    def settings(self) -> dict[str, Any]:
        """How a cohort is cut, and how its steps are made."""
        return {"stack": self.stack, "memory": self._memory, "graphs": self.graphs}

    @property
    def _memory(self) -> float:
        return MEMORY[self.network.device.type] if self.memory is None else self.memory

    @cached_property
    def _graphs(self) -> Graphs:
        """Those of this network, kept from round to round."""
        wanted = self.network.device.type == "cuda" and self.graphs is not False
        return Graphs(CudaGraph if wanted else None, self._say_eager)

    def _results(self, job: ClientJob[T], tasks: Sequence[ClientTask]) -> Iterator[T]:
        """The result of each task, in order: a stack's at once, or one by one as they are asked for."""
        asked: Any = job
        at_once = self._at_once(asked, tasks) if isinstance(asked, LocalTraining) else 0
        for first in range(0, len(tasks), at_once or 1):
            together = tasks[first : first + (at_once or 1)]
            found = self._trained(asked, together) if at_once and len(together) >= self._fewest else None
            yield from (job(self.network, task) for task in together) if found is None else cast("list[T]", found)

    @property
    def _fewest(self) -> int:
        """Clients that make a stack: one is worth it where its steps become graphs."""
        return 1 if self._graphs else 2

    def _at_once(self, job: LocalTraining, tasks: Sequence[ClientTask]) -> int:
        """Clients to a stack; 0 where they run one by one."""
        if len(tasks) < self._fewest:
            return 0
        reason = why_not(job, self.network)
        if reason is None:
            limit = int(self._memory * GIB * (1 - POOLED))
            found = clients_in(job, self.network, self.stack, limit, graphs=bool(self._graphs))
            if found:
                return found
            few = 1 if self._graphs else min(self.stack, BLOCK)
            reason = f"{few} at once would take more than executor.memory={self._memory:g} GiB"
        self._say(reason)
        return 0

    def _trained(self, job: LocalTraining, tasks: Sequence[ClientTask]) -> list[ClientResult] | None:
        """The clients' results; None where they turn out not to be stackable."""
        network = self.network
        try:
            fits = train(job, network, stacked(network).network, tasks, self._pooled(), self._graphs)
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
        return int(self._memory * GIB * POOLED / each)

    def _say(self, reason: str) -> None:
        self._once(f"clients run one by one, because {reason}")

    def _say_eager(self, reason: str) -> None:
        self._once(f"some steps run without a CUDA graph, because {reason}")

    def _once(self, sentence: str) -> None:
        if sentence not in self._said:
            self._said.add(sentence)
            log.warning("executor=stacked: %s; this is said once", sentence)
