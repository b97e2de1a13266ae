"""FedStabilize's batches: mixed ones; on noisy clients of samples near a prototype, with its class as label."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.step import WHOLE, Phase
from flnl.methods.fedstabilize.exchange import PrototypeLabels
from flnl.parts.batches import Mixup


@dataclass(frozen=True)
class PrototypeBatches(Mixup):
    """Mixup. On a noisy client, all epochs of a visit train on what was chosen at its start, if anything was.

    ``use=all``: samples that are near no prototype are trained on, too, with their own labels.
    """

    reads: ClassVar[tuple[type, ...]] = (PrototypeLabels,)
    use: Literal["confident", "all"]

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterator[Phase]:
        chosen = task.visit.get(PrototypeLabels)
        if chosen is None:
            yield WHOLE
        elif self.use == "all":
            yield Phase(labels=torch.where(chosen.used, chosen.labels, task.labels))
        else:
            yield Phase(positions=chosen.used.nonzero()[:, 0], labels=chosen.labels)
