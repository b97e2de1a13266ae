"""Proximal terms: they hold the client's parameters near those it received."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flnl.core.parts import LossTerm, Params, Step
from flnl.core.ranges import NonNegative
from flnl.methods.fedcorr.exchange import NoiseDirective


def squared_distance(params: Mapping[str, Tensor], anchor: Params) -> Tensor:
    """``‖w − w_t‖²`` over all trainable parameters, a scalar."""
    total: Tensor = torch.stack([(p - anchor[name]).square().sum() for name, p in params.items()]).sum()
    return total


def distance(params: Mapping[str, Tensor], anchor: Params) -> Tensor:
    """``‖w − w_t‖``, a scalar; its gradient at w = w_t is taken as zero."""
    parts = torch.stack([torch.linalg.vector_norm(p - anchor[name]) for name, p in params.items()])
    total: Tensor = torch.linalg.vector_norm(parts)
    return total


@dataclass(frozen=True)
class Proximal(LossTerm):
    """``(μ/2) ‖w − w_t‖²`` with w_t the received model (FedProx, Li et al. 2020, Eq. 2); parameters only."""

    mu: NonNegative

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """The penalty, a scalar."""
        return self.mu / 2 * squared_distance(step.params, step.broadcast.params), state


@dataclass(frozen=True)
class AdaptiveProximal(LossTerm):
    """``β μ̂_k ‖w − w_t‖²`` with μ̂_k the client's estimated noise level (FedCorr, Eq. 5).

    ``form="norm"`` is the released code's: the plain norm, and nothing on the first batch of an epoch. The two
    gradients agree where ``‖w − w_t‖ = 0.5``. The squared form is stable while ``2 lr β μ̂ < 1`` or so.
    """

    reads: ClassVar[tuple[type, ...]] = (NoiseDirective,)
    beta: NonNegative
    form: Literal["squared", "norm"]

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """The penalty, a scalar."""
        strength = self.beta * step.broadcast.extras.one(NoiseDirective).level
        if self.form == "squared":
            return strength * squared_distance(step.params, step.broadcast.params), state
        if step.number == 0:
            strength = 0.0
        return strength * distance(step.params, step.broadcast.params), state
