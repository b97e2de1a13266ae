"""FedBeat's batch rule: the samples that the ensemble has labelled."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import BatchRule
from flnl.core.ranges import PositiveCount
from flnl.core.step import Phase
from flnl.methods.fedbeat.ensemble import DistilledSet


@dataclass(frozen=True)
class DistilledSamples(BatchRule):
    """An epoch is of the samples that the ensemble has labelled; a client without any takes no step.

    ``last_batch_only``: of them, only those of a shuffled epoch's last batch, as in the authors' program, which steps
    once an epoch.
    """

    reads: ClassVar[tuple[type, ...]] = (DistilledSet,)
    last_batch_only: bool
    batch_size: PositiveCount

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        places = task.state.extras.one(DistilledSet).chosen.nonzero()[:, 0]
        if self.last_batch_only and len(places):
            order = torch.from_numpy(task.stream("last batch", epoch).permutation(len(places)))
            places = places[order[-((len(places) - 1) % self.batch_size + 1) :]].sort().values
        yield Phase(positions=places)
