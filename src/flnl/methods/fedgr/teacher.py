"""A client's teacher: an average of the models that it has trained, pulled to the global model at every visit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from flnl.core.payload import Params
from flnl.core.stored import stored

Decay = Literal["constant", "released"]
COPIED = 3
"""Updates of a client's life that copy the trained model, in the authors' program."""


def averaged(kept: Mapping[str, Tensor], params: Mapping[str, Tensor], decay: float | Tensor) -> Params:
    """``γ kept + (1 - γ) params`` of each tensor in ``kept``."""
    return {name: tensor + (1 - decay) * (params[name] - tensor) for name, tensor in kept.items()}


def released_decay(updates: Tensor, most: float) -> Tensor:
    """The decay of the update after so many: 0 for the first three, ``min(1 - 1 / (n - 1), most)`` for the n-th."""
    number = updates.double() + 1
    return torch.where(number <= COPIED, 0.0, (1 - 1 / (number - 1).clamp_min(1)).clamp(max=most))


@stored("AveragedTeacher")
class AveragedTeacher:
    """Kept on the client."""

    params: Params  # parameters and float buffers
    updates: Tensor  # int64 scalar, updates in the client's life

    def pulled(self, received: Mapping[str, Tensor], decay: float) -> AveragedTeacher:
        """With the received model averaged in."""
        return replace(self, params=averaged(self.params, received, decay))

    def following(self, params: Mapping[str, Tensor], decay: float, rule: Decay) -> AveragedTeacher:
        """After a step of the client. ``released``: each step counts as two updates, whose decay grows."""
        teacher, updates = self.params, self.updates
        for _ in range(2 if rule == "released" else 1):
            teacher = averaged(teacher, params, released_decay(updates, decay) if rule == "released" else decay)
            updates = updates + 1
        return AveragedTeacher(teacher, updates)
