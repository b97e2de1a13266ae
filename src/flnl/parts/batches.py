"""Batch rules: plain batches and mixup."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flnl.core.parts import BatchRule
from flnl.core.ranges import NonNegative, StageNumber
from flnl.core.step import Mixing


@dataclass(frozen=True)
class Plain(BatchRule):
    """Leaves batches as they are."""


@dataclass(frozen=True)
class Mixup(BatchRule):
    """Mixup: one λ ~ Beta(α, α) per batch, a permuted partner per sample (Zhang et al. 2018; FedCorr, Sec. 3.2).

    The mixed target is the soft label ``λ y_i + (1-λ) y_j``. ``alpha=0`` or ``enabled=false`` mixes nothing. ``stages``
    limits mixing to the stages with these numbers, from 1; null means all.
    """

    alpha: NonNegative
    enabled: bool
    stages: list[StageNumber] | None

    def draw(self, rng: np.random.Generator, size: int, stage: int) -> Mixing | None:
        """λ and a permutation; None if nothing is mixed."""
        if not self.enabled or self.alpha == 0 or (self.stages is not None and stage not in self.stages):
            return None
        return Mixing(float(rng.beta(self.alpha, self.alpha)), torch.from_numpy(rng.permutation(size)))

    def mix(self, inputs: Tensor, labels: Tensor, num_classes: int, draw: Mixing | None) -> tuple[Tensor, Tensor]:
        """Mixed inputs [B, C, H, W] and soft targets [B, K]."""
        if draw is None:
            return inputs, labels
        share, partner = draw.share, draw.partner.to(inputs.device, non_blocking=True)
        # not one_hot, which reads the labels' values
        soft = (labels[:, None] == torch.arange(num_classes, device=labels.device)).to(inputs.dtype)
        return torch.lerp(inputs[partner], inputs, share), torch.lerp(soft[partner], soft, share)

    def weigh(self, weight: Tensor, draw: Mixing | None) -> Tensor:
        """``λ w_i + (1-λ) w_j``."""
        if draw is None:
            return weight
        return torch.lerp(weight[draw.partner.to(weight.device, non_blocking=True)], weight, draw.share)
