"""FedEFC's objective: cross-entropy at first, then the loss that the client's noise matrix corrects."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import LossTerm
from flnl.core.step import Step
from flnl.methods.fedefc.matrix import NoiseMatrix
from flnl.parts.losses.forward_correction import forward_loss
from flnl.parts.losses.targets import cross_entropy


@dataclass(frozen=True)
class Running:
    """The term's state in one visit: how often the network that is being trained predicted the label."""

    right: Tensor  # int64 scalar
    seen: Tensor  # int64 scalar

    @property
    def accuracy(self) -> float:
        """The share; 0 if nothing was seen."""
        return float(self.right) / max(1, int(self.seen))


@dataclass(frozen=True)
class FedEFC(LossTerm):
    """``-log Σ_j N_yj p_j`` with N this visit's noise matrix and p the softmax of the logits.

    Cross-entropy as long as there is no matrix; then the term also counts how many predictions are right in training.
    """

    reads: ClassVar[tuple[type, ...]] = (NoiseMatrix,)
    fits_labels: ClassVar[bool] = True

    def begin(self, network: Model, task: ClientTask, state: object) -> Running:
        zero = torch.zeros((), dtype=torch.int64, device=network.device)
        return Running(zero, zero)

    def __call__(self, step: Step, state: Running) -> tuple[Tensor, Running]:
        noise = step.visit.get(NoiseMatrix)
        if noise is not None:
            matrix = onto(noise.values.T, step.logits.device)
            return forward_loss(step.logits, step.targets, matrix), state
        right = step.logits.detach().argmax(1) == step.labels
        there = torch.ones_like(right) if step.weight is None else step.weight > 0
        counted = Running(state.right + (right & there).sum(), state.seen + there.sum())
        return cross_entropy(step.logits, step.targets), counted
