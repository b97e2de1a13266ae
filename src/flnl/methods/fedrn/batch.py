"""FedRN's batch rule: training on the samples that the client and its neighbours take for clean."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import BatchRule
from flnl.core.step import Phase
from flnl.methods.fedrn.exchange import CleanSamples


@dataclass(frozen=True)
class ReliableSamples(BatchRule):
    """All epochs of a visit train on the samples that were chosen at its start.

    A client that has not chosen yet trains on all its samples.
    """

    reads: ClassVar[tuple[type, ...]] = (CleanSamples,)

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        """One phase, of the chosen samples, with the client's labels."""
        chosen = task.state.extras.get(CleanSamples)
        yield Phase(positions=None if chosen is None else chosen.mask.nonzero()[:, 0])
