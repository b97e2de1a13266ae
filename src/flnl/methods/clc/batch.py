"""CLC's batch rule: training on the samples that are not held out."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import BatchRule
from flnl.core.step import Phase
from flnl.methods.clc.exchange import HeldOut


@dataclass(frozen=True)
class HoldOut(BatchRule):
    """All epochs of a visit train on the samples that were not held out at its start, with the client's labels."""

    reads: ClassVar[tuple[type, ...]] = (HeldOut,)

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        yield Phase(positions=(~task.visit.one(HeldOut).mask).nonzero()[:, 0])
