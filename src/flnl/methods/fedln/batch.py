"""NNC's batch rule: training on the labels of neighbours."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import BatchRule
from flnl.core.step import WHOLE, Phase
from flnl.methods.fedln.exchange import NearestLabels


@dataclass(frozen=True)
class NeighboursLabels(BatchRule):
    """A client that adopts its neighbours' labels trains on them from its first visit on, and holds them after it."""

    reads: ClassVar[tuple[type, ...]] = (NearestLabels,)

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        labels = self.relabels(network, task)
        yield WHOLE if labels is None else Phase(labels=labels)

    def relabels(self, network: Model, task: ClientTask) -> Tensor | None:
        """The labels of neighbours; None for a client that keeps its own."""
        kept = task.state.extras.one(NearestLabels)
        return kept.labels if kept.adopted else None
