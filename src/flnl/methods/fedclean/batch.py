"""FedClean's batch rule: mixup of the samples that have been accepted."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.step import Phase
from flnl.methods.fedclean.sets import TrainingSets, TrainOn
from flnl.parts.batches import Mixup


@dataclass(frozen=True)
class AcceptedSamples(Mixup):
    """Mixup of clean samples, after a correction of those that it has brought, or of all so far (``train_on``).

    A client without any takes no step and returns the model that it has received.
    """

    reads: ClassVar[tuple[type, ...]] = (TrainingSets,)
    train_on: TrainOn

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        accepted = task.state.extras.one(TrainingSets).trained(self.train_on)
        yield Phase(positions=accepted.nonzero()[:, 0])
