"""FedSIR's objective: logit adjustment, on noisy clients with renewed labels and distillation of those in dispute."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import LossTerm, Setting
from flnl.core.ranges import Count, Positive, Share, StageNumber
from flnl.core.step import Step
from flnl.methods.fedsir.exchange import RelabelledSamples
from flnl.numerics.ramp import exponential_ramp
from flnl.parts.losses.logit_adjustment import adjusted, distilled
from flnl.parts.losses.targets import expected
from flnl.parts.messages import ClientTag


@dataclass(frozen=True)
class FedSIR(LossTerm):
    """``-log softmax(z + log π)_y`` on clean clients; on noisy ones for renewed labels, mixed with distillation.

    π [K] are the shares of the classes among the labels that the client holds, each counted at least once. On a noisy
    client, a sample on which both scores agreed has its renewed label; any other has the loss
    ``(1 - w) (-log softmax(z + log π)_y) + w KL(softmax(u / τ) ‖ softmax(z + log π))`` with u the logits of the
    received model in eval mode. w rises from round ``ramp_begin`` of stage ``stage`` (from 0) to ``distillation`` at
    ``ramp_end``.
    """

    reads: ClassVar[tuple[type, ...]] = (ClientTag, RelabelledSamples)
    fits_labels: ClassVar[bool] = True
    temperature: Positive
    distillation: Share
    ramp_begin: Count
    ramp_end: Count
    stage: StageNumber

    def begin(self, network: Model, task: ClientTask, state: Any) -> Tensor:
        """The logarithms of π, [K]."""
        counts = torch.bincount(task.labels, minlength=network.num_classes).clamp_min(1).double()
        return onto((counts / counts.sum()).log(), network.device, network.dtype)

    def __call__(self, step: Step, state: Tensor) -> tuple[Tensor, Tensor]:
        logs = adjusted(step.logits, state)
        tag = step.broadcast.extras.get(ClientTag)
        if tag is None or tag.noisy is False:
            return expected(-logs, step.targets), state
        own, at = step.visit.one(RelabelledSamples), step.positions
        noisy = torch.ones_like(step.labels, dtype=torch.bool) & tag.noisy  # of stacked clients only some may be
        changed = (own.labels != own.judged)[at] & noisy
        labels = torch.where(changed, own.labels[at], step.labels)
        mixing = step.mixing
        targets = labels if mixing is None else mixing.targets(labels, logs.shape[1], logs.dtype)
        round = step.broadcast.clock.since(self.stage)
        weight = exponential_ramp(round, self.ramp_begin, self.ramp_end, self.distillation)
        share = logs.new_full((), weight) * (noisy & ~own.agreed[at])
        distillation = distilled(logs, step.received(step.inputs), self.temperature)
        return (1 - share) * expected(-logs, targets) + share * distillation, state

    def caution(self, setting: Setting) -> str | None:
        rounds = setting.lengths[self.stage - 1]
        if self.distillation == 0 or self.ramp_end < rounds or not rounds:
            return None
        return (
            f"{setting.key} distils less than asked for: its weight rises to {self.distillation:g} in round "
            f"{self.ramp_end} (ramp_end) of stage {self.stage}, which has {rounds}; raise rounds or lower ramp_end"
        )
