"""CLC's correction: every sample takes its likely class, or the most probable one."""

from dataclasses import dataclass
from typing import ClassVar

from flnl.core.messages import ClientTask, Correction
from flnl.core.model import Model
from flnl.core.parts import LabelCorrector
from flnl.core.payload import Payload
from flnl.methods.clc.consensus import ClassThresholds, corrected


@dataclass(frozen=True)
class ByConsensus(LabelCorrector):
    """Labels become the most probable class above its threshold, or the most probable class where none is above it.

    All samples are judged, also those that were never held out. The thresholds are those of the last round.
    """

    reads: ClassVar[tuple[type, ...]] = (ClassThresholds,)
    rules: ClassVar[tuple[str, ...]] = ("consensus",)

    def correct(self, network: Model, task: ClientTask, rule: str) -> Correction:
        thresholds = task.broadcast.extras.one(ClassThresholds).values
        labels = corrected(network.received(task).double().softmax(1), thresholds)
        return Correction(task.client, labels, task.state.weight, Payload(), Payload())
