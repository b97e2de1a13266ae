"""A batch rule: samples of small loss."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch.nn.functional as F

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import BatchRule
from flnl.core.ranges import PositiveShare
from flnl.core.step import Phase


@dataclass(frozen=True)
class SmallLoss(BatchRule):
    """A visit trains on the ``share`` of the client's samples that fit the received model best."""

    share: PositiveShare

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterable[Phase]:
        """One phase an epoch, of the same samples in each."""
        losses = F.cross_entropy(network.received(task), task.labels, reduction="none")
        kept = losses.argsort(stable=True)[: max(int(self.share * len(losses)), 1)]
        return (Phase(positions=kept),)
