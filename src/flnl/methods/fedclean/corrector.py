"""FedClean's two corrections: towards inferred labels where the global model agrees, then towards its predictions."""

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from flnl.core.messages import ClientTask, Correction
from flnl.core.model import Model
from flnl.core.parts import LabelCorrector
from flnl.core.payload import Payload
from flnl.core.ranges import Share
from flnl.methods.fedclean.sets import TrainingSets, towards_inferred, towards_predicted, upper
from flnl.numerics.losses import sample_losses


@dataclass(frozen=True)
class TwoCorrections(LabelCorrector):
    """``inferred`` corrects disputed labels, ``predicted`` what is left; by the model after the stage's last round.

    Of the candidates whose loss is of the upper of two Gaussians, the share ``inferred_share`` or ``predicted_share``
    with the largest losses is relabelled, in the second correction those with a probability of ``confidence`` or more.
    """

    reads: ClassVar[tuple[type, ...]] = (TrainingSets,)
    rules: ClassVar[tuple[str, ...]] = ("inferred", "predicted")
    inferred_share: Share
    predicted_share: Share
    confidence: Share

    def correct(self, network: Model, task: ClientTask, rule: str) -> Correction:
        sets, logits, labels = task.state.extras.one(TrainingSets), network.received(task), task.labels
        if rule == "inferred":
            first = towards_inferred(sets, logits, self.inferred_share)
            labels = torch.where(first, sets.inferred, labels)
            sets = replace(sets, first=first, corrections=1)
        else:
            losses = sample_losses(logits, labels)
            high = upper(losses, ~sets.clean & ~sets.first)
            second, rest = towards_predicted(sets, labels, logits, high, self.predicted_share, self.confidence)
            labels = torch.where(second, logits.argmax(1), labels)
            sets = replace(sets, second=second, rest=rest, corrections=2)
        return Correction(task.client, labels, task.state.weight, Payload(sets), Payload())
