"""The client's model as a LightningModule: a training step and an optimiser, driven by the loop in ``sgd``.

The training step is a pure function of its argument: no ``self.log``, no state, no branch on a tensor's value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn

from flnl.config.schema import Training
from flnl.core.parts import LossTerm
from flnl.core.step import Step
from flnl.engine.local.optimizer import Buffers, made
from flnl.numerics.losses import weighted_mean


@dataclass
class Objective:
    """The sum of named loss terms, with each term's state on this client."""

    terms: Mapping[str, LossTerm]
    states: dict[str, Any] = field(default_factory=dict)

    def __call__(self, step: Step) -> Tensor:
        """The loss of one batch, a scalar: per-sample terms are averaged by ``step.weight``, scalars added.

        If all terms are per sample and the batch has no weights: the rows [B], whose mean is the loss. Returning rows
        saves a graph node; ``backward`` takes both forms.
        """
        rows = step.weight is None
        losses: list[Tensor] = []
        for name, term in self.terms.items():
            with step.called_by(name):
                loss, self.states[name] = term(step, self.states.get(name))
            rows = rows and loss.dim() == 1
            losses.append(loss)
        assert losses, "a method has at least one loss term"
        if not rows:
            losses = [weighted_mean(loss, step.weight) if loss.dim() == 1 else loss for loss in losses]
        return losses[0] if len(losses) == 1 else sum(losses[1:], losses[0])


def backward(loss: Tensor) -> None:
    """Compute the gradients of ``loss``, or of the mean of its rows [B]."""
    if loss.dim() == 0:
        loss.backward()
    else:
        loss.backward(torch.full_like(loss, 1 / len(loss)))


def mean_over_steps(losses: Sequence[Tensor]) -> float:
    """Mean loss over the steps; a step's loss is a scalar, or rows [B] to be averaged. 0 without steps."""
    values: dict[int, float] = {}
    for shape in {loss.shape for loss in losses}:
        steps = [step for step, loss in enumerate(losses) if loss.shape == shape]
        together = torch.stack([losses[step] for step in steps])
        values |= zip(steps, (together.mean(1) if shape else together).double().tolist(), strict=True)
    return sum(values[step] for step in range(len(losses))) / max(len(losses), 1)


class ClientModule(L.LightningModule):
    """Local training of one client, under Lightning's method names."""

    def __init__(self, module: nn.Module, training: Training, buffers: Buffers | None = None) -> None:
        """``buffers``: those of the optimiser beside each parameter, updated in place; None to start from zero."""
        super().__init__()
        self.module = module
        self.training_settings = training
        self._kept = buffers

    def training_step(self, step: Step, objective: Objective) -> Tensor:
        """The objective on one batch, a scalar or [B]."""
        return objective(step)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The optimiser of the trainable parameters; new for every client and round."""
        return made(self.training_settings, [p for p in self.module.parameters() if p.requires_grad], self._kept)
