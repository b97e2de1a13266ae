"""FedRN's batch rule: training on the samples that the client and its neighbours take for clean."""

from dataclasses import dataclass
from typing import ClassVar

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import BatchRule, Selection
from flnl.methods.fedrn.exchange import CleanSamples


@dataclass(frozen=True)
class ReliableSamples(BatchRule):
    """All epochs of a visit train on the samples that were chosen at its start.

    A client that has not chosen yet trains on all its samples.
    """

    reads: ClassVar[tuple[type, ...]] = (CleanSamples,)

    def select(self, network: Model, task: ClientTask, epoch: int) -> Selection | None:
        """The chosen samples, with the client's labels."""
        chosen = task.state.extras.get(CleanSamples)
        return None if chosen is None else Selection(chosen.mask.nonzero()[:, 0])
