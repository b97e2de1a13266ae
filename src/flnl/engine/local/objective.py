"""The objective of local training: the sum of a method's loss terms, its gradients, and its mean over the steps."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from flnl.core import checked
from flnl.core.parts import LossTerm
from flnl.core.payload import Params
from flnl.core.step import Step
from flnl.numerics.losses import weighted_mean

ENGINE = getattr(torch.autograd.Variable, "_execution_engine", None)
"""Torch's engine of backward passes; other versions of torch may have it elsewhere."""


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
            returned = step.given_to(name, term, self.states.get(name))
            loss, self.states[name] = checked.loss(name, returned, len(step.labels))
            rows = rows and loss.dim() == 1
            losses.append(loss)
        assert losses, "a method has at least one loss term"
        if not rows:
            losses = [weighted_mean(loss, step.weight) if loss.dim() == 1 else loss for loss in losses]
        return losses[0] if len(losses) == 1 else sum(losses[1:], losses[0])

    @cached_property
    def followers(self) -> tuple[str, ...]:
        """Names of the terms whose states follow the parameters after each step."""
        return followers(self.terms)

    def stepped(self, params: Params) -> None:
        """Update those states, from the parameters and buffers after a step."""
        with torch.no_grad():
            for name in self.followers:
                self.states[name] = self.terms[name].stepped(params, self.states.get(name))


def followers(terms: Mapping[str, LossTerm]) -> tuple[str, ...]:
    """Names of the terms whose states follow the parameters after each step (``LossTerm.stepped``)."""
    return tuple(name for name, term in terms.items() if term.overrides("stepped"))


def backward(loss: Tensor, share: float) -> None:
    """Compute the gradients of the sum of the entries of ``loss``, of which each counts ``share``.

    On a CPU it gives the sum to torch's engine itself: ``Tensor.backward`` would check it first, which takes a
    twentieth of a small network's step.
    """
    shares = torch.full_like(loss, share)
    if ENGINE is None or loss.device.type != "cpu":
        loss.backward(shares)
    else:
        ENGINE.run_backward((loss,), (shares,), False, False, (), allow_unreachable=True, accumulate_grad=True)


def mean_over_steps(losses: Sequence[Tensor]) -> float:
    """Mean loss over the steps; a step's loss is a scalar, or rows [B] to be averaged. 0 without steps."""
    values: dict[int, float] = {}
    for shape in {loss.shape for loss in losses}:
        steps = [step for step, loss in enumerate(losses) if loss.shape == shape]
        together = torch.stack([losses[step] for step in steps])
        values |= zip(steps, (together.mean(1) if shape else together).double().tolist(), strict=True)
    return sum(values[step] for step in range(len(losses))) / max(len(losses), 1)
