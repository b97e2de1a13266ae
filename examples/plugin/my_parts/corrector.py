"""A label corrector: the model replaces labels where it is sure."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from flnl.core.messages import ClientTask, Correction
from flnl.core.model import Model
from flnl.core.parts import LabelCorrector
from flnl.core.payload import Payload
from flnl.core.ranges import Share


@dataclass(frozen=True)
class Confident(LabelCorrector):
    """A label becomes the model's prediction if its probability is above ``threshold``; other labels stay."""

    rules: ClassVar[tuple[str, ...]] = ("confident",)
    threshold: Share

    def correct(self, network: Model, task: ClientTask, rule: str) -> Correction:
        """The client's labels, corrected; it sends nothing and keeps nothing else."""
        sure, predicted = network.logits(task.samples).softmax(1).max(1)
        labels = torch.where(sure > self.threshold, predicted, task.labels)
        return Correction(task.client, labels, None, Payload(), Payload())
