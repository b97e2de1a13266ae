"""FedStabilize's regularisers: features go to their classes' prototypes, and no class is forgotten."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import LossTerm, Part, Setting
from flnl.core.ranges import NonNegative
from flnl.core.step import FEATURES, Step
from flnl.methods.fedstabilize.prototypes import Prototypes, slerp, why_no_prototypes
from flnl.numerics.losses import log_mean_prediction


@dataclass(frozen=True)
class FedStabilize(LossTerm):
    """``a/2 (1 - cos(f, s))² + r KL(u ‖ p̄)`` with f a sample's features, and s its class's prototype.

    In a mixed batch, s is the point between both classes' prototypes that the labels' shares give (``slerp``). p̄ is
    the batch's mean prediction, u uniform; the second summand is the same for all samples of a batch.
    """

    networks: ClassVar[int | None] = 1
    alignment: NonNegative
    uniformity: NonNegative
    prototypes: Prototypes

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        return why_no_prototypes(network)

    def begin(self, network: Model, task: ClientTask, state: object) -> Tensor:
        """The prototypes [K, d]."""
        return self.prototypes.of(task.broadcast.params)

    def __call__(self, step: Step, state: Tensor) -> tuple[Tensor, Tensor]:
        loss = step.logits.new_zeros(())
        if self.alignment:
            away = 1 - _aligned(step, state)
            loss = loss + self.alignment * away.square() / 2
        if self.uniformity:
            logs = log_mean_prediction(step.logits, step.weight)
            loss = loss - self.uniformity * (logs.mean() + torch.log(torch.full_like(logs[0], len(logs))))
        return loss, state


def _aligned(step: Step, prototypes: Tensor) -> Tensor:
    """The cosine of each sample's features and its point [B]."""
    own = prototypes[step.labels]
    if step.mixing is not None:
        partner = onto(step.mixing.partner, own.device)
        own = slerp(own, own[partner], step.mixing.share)
    features = step.output(FEATURES)
    return (F.normalize(features, dim=1) * own.to(features.dtype)).sum(1)
