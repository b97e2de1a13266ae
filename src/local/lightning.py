"""The client's model as a LightningModule: a training step and an optimiser, driven by the loop in ``sgd``.

The step touches only its argument: no ``self.log``, no state, no branch on a tensor's value.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from src.config import Training
from src.core import LossTerm, Step


@dataclass
class Objective:
    """The sum of named terms, and the state that each of them has on this client."""

    terms: Mapping[str, LossTerm]
    states: dict[str, Any] = field(default_factory=dict)

    def __call__(self, step: Step) -> Tensor:
        """The loss of one batch: per-sample terms averaged by ``step.weight``, scalars added."""
        weight = step.weight
        total: Tensor | None = None
        for name, term in self.terms.items():
            loss, self.states[name] = term(step, self.states.get(name))
            if loss.dim() == 1:
                loss = loss.mean() if weight is None else (weight * loss).sum() / weight.sum().clamp_min(1e-12)
            total = loss if total is None else total + loss
        assert total is not None, "a method has at least one loss term"
        return total


class ClientModule(L.LightningModule):
    """Local training of one client, as Lightning names its pieces."""

    def __init__(self, module: nn.Module, training: Training) -> None:
        super().__init__()
        self.module = module
        self.training_settings = training

    def training_step(self, step: Step, objective: Objective) -> Tensor:
        """The objective on one batch."""
        return objective(step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Plain SGD, new for every client and round: its momentum starts at zero."""
        use = self.training_settings
        parameters = [p for p in self.module.parameters() if p.requires_grad]
        return torch.optim.SGD(parameters, use.lr, use.momentum, weight_decay=use.weight_decay, fused=True)
