"""Trains many clients at once in this process, as one network; jobs that cannot be stacked run client by client."""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import islice, pairwise
from typing import Annotated, Any, Literal, TypeVar, cast

import torch
from annotated_types import Ge, Interval, MultipleOf

from flnl.core.errors import UserError
from flnl.core.execution import BLOCK, Block, ClientJob, Executor
from flnl.core.messages import ClientResult, ClientTask, Fit
from flnl.core.ranges import Positive, PositiveCount
from flnl.core.tally import Tally
from flnl.engine.cuda_graph import GraphRecorder, can_record
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Layout, Network, laid_out, safe_channels_last
from flnl.engine.recorded_passes import RecordedPasses
from flnl.engine.stacked.eligibility import clients_in, why_not
from flnl.engine.stacked.errors import NotStackable
from flnl.engine.stacked.graph import Graphs
from flnl.engine.stacked.network import stacked
from flnl.engine.stacked.training import train, train_apart

log = logging.getLogger(__name__)

T = TypeVar("T")
V = TypeVar("V")

GraphsOf = Literal["auto", "branches", "stacks"]
"""What a CUDA graph records: clients side by side, or a stack; auto means branches. On a CPU nothing is recorded."""

GIB = 2**30
CPU_MEMORY, GPU_MEMORY = 1.0, 16.0
"""Default memory limit of a stack in GiB, on a CPU and on a GPU."""
GPU_SHARE = 0.75
"""Maximum fraction of a GPU's memory that the default limit takes."""
POOLED = 0.25
"""Fraction of this memory that a stack's images may take."""
Few = Annotated[int, Interval(ge=1, lt=BLOCK)]
Blocks = Annotated[int, Ge(BLOCK), MultipleOf(BLOCK)]


@dataclass(frozen=True)
class Stacked(Executor):
    """Trains a cohort in stacks of clients, on one network; other jobs run one client after another.

    The split into stacks depends only on the cohort, the configuration and the kind of device: a cohort is cut into
    ``split`` sections, and each section into stacks.
    """

    network: Network
    stack: Few | Blocks  # maximum number of clients in a stack
    memory: Positive | None  # GiB that a stack may take; None for the default
    graphs: GraphsOf | bool = "auto"  # how steps are recorded as CUDA graphs; early run records lack this field
    split: PositiveCount = 1  # number of sections of a cohort; early run records lack this field
    memory_format: Layout = "contiguous"  # early run records lack this field
    compile: bool = False  # whether clients' passes are compiled, on a GPU; early run records lack this field
    _logged: set[str] = field(default_factory=set, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Check the settings against the device.

        Raises:
            UserError: if ``graphs`` is true on a CPU, or if what is to be compiled are not passes of one client.
        """
        if self.graphs is True and not can_record(self.network.device):
            raise UserError(
                "executor.graphs=true, but this run is on a CPU and CUDA graphs need a GPU: use executor.graphs=auto"
            )
        if self.compile and self.graphs not in ("auto", "branches") and not (self.graphs and self.stack == 1):
            given = str(self.graphs).lower()
            raise UserError(
                f"executor.compile=true, but with executor.graphs={given} clients take no steps of their own: use "
                "executor.graphs=branches"
            )
        self.network.recorded = (
            None
            if self._recorder is None
            else RecordedPasses(self._recorder, partial(self._log_eager, "some evaluations"))
        )

    def map(
        self, job: ClientJob[T], tasks: Sequence[ClientTask], reduce: Callable[[list[T]], Block[V, T]]
    ) -> Iterator[Block[V, T]]:
        """Reduced blocks of ``BLOCK`` tasks, in order."""
        groups = self.groups(job, tasks)
        results = (result for group in groups for result in self.run_group(job, [tasks[i] for i in group]))
        while block := list(islice(results, BLOCK)):
            yield reduce(block)

    def groups(self, job: ClientJob[Any], tasks: Sequence[ClientTask]) -> list[list[int]]:
        """The stacks; single clients if they run one by one."""
        at_once = (self._at_once(job, tasks) if isinstance(job, LocalTraining) else 0) or 1
        return [
            list(section[first : first + at_once])
            for section in sections(len(tasks), self.split)
            for first in range(0, len(section), at_once)
        ]

    def run_group(self, job: ClientJob[T], tasks: Sequence[ClientTask]) -> list[T]:
        """Train the tasks as one stack, or one by one if they cannot be stacked."""
        asked: Any = job
        if isinstance(asked, LocalTraining) and self._at_once(asked, tasks):
            results = self._trained(asked, tasks)
            return cast(
                "list[T]", [asked(self.network, t) if r is None else r for t, r in zip(tasks, results, strict=True)]
            )
        return [job(self.network, task) for task in tasks]

    def pop_tally(self) -> Tally:
        """The samples that have passed the network since the last call."""
        return self.network.meter.pop()

    def settings(self) -> dict[str, Any]:
        """The effective settings."""
        return {
            "stack": self.stack,
            "memory": self._memory,
            "graphs": self._recorded_as,
            "split": self.split,
            "memory_format": "channels_last" if self._channels_last else "contiguous",
            "compile": self._compiles,
        }

    @property
    def _compiles(self) -> bool:
        """The effective setting."""
        return self.compile and can_record(self.network.device)

    @property
    def _channels_last(self) -> bool:
        """In ``auto``, where it is faster: on a CPU in 32 bits, on a GPU where it is for single clients."""
        network = self.network
        if self.memory_format == "auto" and network.device.type == "cpu":
            return network.dtype == torch.float32 and safe_channels_last(network.module, network.device)
        return laid_out(network.module, network.placement, self.memory_format) == torch.channels_last

    @cached_property
    def _memory(self) -> float:
        if self.memory is not None:
            return self.memory
        device = self.network.device
        if device.type == "cpu":
            return CPU_MEMORY
        _, total = torch.get_device_module(device).mem_get_info(device)
        return min(GPU_MEMORY, math.floor(GPU_SHARE * int(total) / GIB * 10) / 10)

    @property
    def limitation(self) -> str:
        """What of the settings the device cannot do, for the user; empty if it can do all."""
        if not can_record(self.network.device) and (self.graphs == "branches" or self.compile):
            recorded = ["executor.graphs=branches is for a GPU: nothing is recorded here"] * (self.graphs == "branches")
            compiled = ["executor.compile=true is for a GPU: nothing is compiled here"] * self.compile
            return "; ".join(recorded + compiled)
        if self.memory is not None or self.network.device.type == "cpu" or self._memory == GPU_MEMORY:
            return ""
        return f"executor.memory={self._memory:g} GiB, {100 * GPU_SHARE:.0f} % of what {self.network.device} has"

    @cached_property
    def _recorder(self) -> GraphRecorder | None:
        """What makes this network's CUDA graphs; None if nothing is recorded."""
        wanted = self.graphs is not False and can_record(self.network.device)
        return GraphRecorder(self.network.device) if wanted else None

    @cached_property
    def _graphs(self) -> Graphs:
        """The CUDA graphs of clients' steps, kept from round to round."""
        return Graphs(self._recorder, partial(self._log_eager, "some steps"))

    @property
    def _branches(self) -> bool:
        """Whether clients are stacks of one, which are branches of one graph."""
        return self.graphs in ("auto", "branches") and can_record(self.network.device)

    @property
    def _recorded_as(self) -> GraphsOf | bool:
        """The effective setting."""
        if not can_record(self.network.device):
            return False if self.graphs is False else "auto"
        return "branches" if self._branches else self.graphs

    @property
    def refusals(self) -> Sequence[str]:
        """Why some steps could not be recorded as CUDA graphs; short runs of steps do not count."""
        return tuple(self._graphs.refusals)

    @property
    def _fewest(self) -> int:
        """Smallest stack: two clients, or one if its steps are recorded as graphs."""
        return 1 if self._graphs else 2

    def _at_once(self, job: LocalTraining, tasks: Sequence[ClientTask]) -> int:
        """Number of clients in a stack; 0 if they run one by one."""
        if len(tasks) < self._fewest:
            return 0
        reason = why_not(job, self.network)
        if reason is None and not self._graphs and stacked(self.network).network.alone_on(self.network.device):
            reason = "the network has dropout, whose masks a GPU draws for one client at a time"
        if reason is None:
            limit = int(self._memory * GIB * (1 - POOLED))
            count = clients_in(job, self.network, self.stack, limit, graphs=bool(self._graphs), branches=self._branches)
            if count:
                return count
            few = 1 if self._graphs else min(self.stack, BLOCK)
            reason = f"{few} at once would take more than a stack's memory={self._memory:g} GiB"
        self._log_unstacked(reason)
        return 0

    def _trained(self, job: LocalTraining, tasks: Sequence[ClientTask]) -> list[ClientResult | None]:
        """The clients' results; None for those of which training shows that they cannot be stacked."""
        network = self.network
        many = stacked(network).network
        layout = torch.channels_last if self._channels_last else torch.contiguous_format
        many.lay_out(layout, weights=network.device.type != "cpu")
        with network.receiving(2 * len(tasks)):  # of tasks as they came, and as exchanges have begun them
            apart = [Tally() for _ in tasks]
            begun = [self._begun(job, task, tally) for task, tally in zip(tasks, apart, strict=True)]
            fits = self._fits(job, begun)
            results = list[ClientResult | None]()
            for task, fit, tally in zip(begun, fits, apart, strict=True):
                if isinstance(fit, NotStackable):
                    self._log_unstacked(str(fit))
                    results.append(None)
                    continue
                network.meter.add(tally)
                with network.holding(fit.params):
                    results.append(job.report(network, task, fit))
            return results

    def _fits(self, job: LocalTraining, tasks: Sequence[ClientTask]) -> Sequence[Fit | NotStackable]:
        """The clients' fits, or why they have none: of each client that is a branch, else of all of them."""
        given = job, self.network, stacked(self.network).network, tasks, self._pooled(), self._graphs, self._compiles
        if self._branches:
            return train_apart(*given)
        try:
            return train(*given)
        except NotStackable as refusal:
            return [refusal for _ in tasks]

    def _begun(self, job: LocalTraining, task: ClientTask, tally: Tally) -> ClientTask:
        if not job.exchanges:
            return task
        with self.network.meter.into(tally), self.network.holding(task.broadcast.params):
            return job.begun(self.network, task)

    def _pooled(self) -> int:
        """Maximum number of images that a stack holds."""
        each = math.prod(self.network.transform.shape) * self.network.dtype.itemsize
        return int(self._memory * GIB * POOLED / each)

    def _log_unstacked(self, reason: str) -> None:
        self._log_once(f"clients run one by one, because {reason}")

    def _log_eager(self, what: str, reason: str) -> None:
        self._log_once(f"{what} run without a CUDA graph, because {reason}")

    def _log_once(self, sentence: str) -> None:
        if sentence not in self._logged:
            self._logged.add(sentence)
            log.warning("stacked: %s (logged once)", sentence)


def sections(count: int, split: int) -> list[range]:
    """Cut ``count`` positions into ``split`` consecutive sections of whole blocks, as equal as these allow.

    There are fewer sections if there are fewer blocks; only the last block may be short.

    >>> sections(20, 2), sections(12, 2), sections(3, 2)
    ([range(0, 10), range(10, 20)], [range(0, 5), range(5, 12)], [range(0, 3)])
    """
    blocks = -(-count // BLOCK)
    split = min(split, blocks)
    borders = [min(count, BLOCK * (blocks * number // split)) for number in range(split + 1)] if split else []
    return [range(first, last) for first, last in pairwise(borders)]
