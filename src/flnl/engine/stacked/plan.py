"""What each client of a stack trains on in an epoch: all its samples, or those that its batch rule selects.

A rule selects by the client's own model, which is held while it is asked; an epoch of one phase can be stacked, since
the clients' batches need not be equally many.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, repeat

from torch import Tensor

from flnl.core import checked
from flnl.core.messages import ClientTask
from flnl.core.payload import Params
from flnl.core.step import WHOLE, Phase
from flnl.engine.local.batching import batch_sizes, passes
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.stacked.errors import NotStackable


@dataclass(frozen=True)
class Plan:
    """An epoch of every client, by rank."""

    phases: Sequence[Phase]
    sizes: Sequence[Sequence[int]]  # of each client's batches; none for one whose visit has ended

    def counts(self, tasks: Sequence[ClientTask]) -> list[int]:
        """The number of samples in each client's phase; the last of them may be in no batch."""
        return [
            len(task.samples) if phase.positions is None else len(phase.positions)
            for task, phase in zip(tasks, self.phases, strict=True)
        ]


@dataclass(frozen=True)
class Planner:
    """Plans the epochs of the clients of a stack."""

    job: LocalTraining
    network: Network
    tasks: Sequence[ClientTask]  # by rank
    sizes: Sequence[Sequence[int]]  # of each client's batches in an epoch of all its samples

    @property
    def selects(self) -> bool:
        """Whether clients select the samples of an epoch."""
        return self.job.batch.overrides("phases")

    def plans(self, trained: Callable[[], Params]) -> Iterator[Plan]:
        """Each epoch's plan, made once the epoch before it is trained.

        With ``train.steps``, a client ends after as many steps, or once it selects no sample.

        Args:
            trained: gives the clients' current parameters, [K, *shape] each.

        Raises:
            NotStackable: if an epoch of a client has several phases, or a second pool of samples.
        """
        training = self.job.training
        if training.steps is None and not self.selects:
            yield from repeat(Plan([WHOLE for _ in self.tasks], self.sizes), training.epochs)
            return
        left = [training.steps for _ in self.tasks]
        for epoch in count():
            if not any(left) if training.steps is not None else epoch == training.epochs:
                return
            phases = self._phases(epoch, left, trained)
            sizes = [self._sizes(k, phase)[: left[k]] for k, phase in enumerate(phases)]
            left = [
                None if most is None else (most - len(own) if own else 0) for most, own in zip(left, sizes, strict=True)
            ]
            yield Plan(phases, sizes)

    def _phases(self, epoch: int, left: Sequence[int | None], trained: Callable[[], Params]) -> list[Phase]:
        if not self.selects:
            return [WHOLE for _ in self.tasks]
        params = trained()
        return [WHOLE if left[k] == 0 else self._phase(k, epoch, params) for k in range(len(self.tasks))]

    def _phase(self, k: int, epoch: int, params: Mapping[str, Tensor]) -> Phase:
        rule, task = self.job.batch, self.tasks[k]
        with self.network.holding({name: t[k] for name, t in params.items()}), self.network.lent():
            planned = rule.phases(self.network, task, epoch, passes(self.job.training, self.sizes[k]))
            phases = list(checked.phases(rule, planned, task, self.network.num_classes))
        if len(phases) != 1 or phases[0].beside is not None:
            raise NotStackable(f"{type(rule).__name__} plans several phases, or a second pool of samples")
        return phases[0]

    def _sizes(self, k: int, phase: Phase) -> Sequence[int]:
        if phase.positions is None:
            return self.sizes[k]
        together = self.network.has_batch_norm
        return batch_sizes(len(phase.positions), self.job.training.batch_size, join_last_of_one=together)
