"""Batch rules: plain batches and mixup."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from flnl.core.parts import BatchRule, Part, Setting
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

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        if setting.kind != "tokens" or not self.enabled or self.alpha == 0:
            return None
        return f"mixup blends inputs, and words cannot be blended: set {setting.key}.enabled=false"

    def mixing(self, rng: np.random.Generator, size: int, stage: int) -> Mixing | None:
        if not self.enabled or self.alpha == 0 or (self.stages is not None and stage not in self.stages):
            return None
        return Mixing(float(rng.beta(self.alpha, self.alpha)), torch.from_numpy(rng.permutation(size)))
