"""Decorrelation of features: a penalty on what two features of a batch have in common."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from flnl.core.parts import LossTerm, Part, Setting
from flnl.core.ranges import NonNegative
from flnl.core.step import FEATURES, Step
from flnl.models.outputs import why_features_stay, why_no_features

VARIANCE = 1e-8
"""Added to variances, as in FNBench's program: a feature that is the same in all samples adds nothing."""


@dataclass(frozen=True)
class Decorrelation(LossTerm):
    """``λ mean_{i≠j} (Σ_b z_bi z_bj)² / B`` of a batch, a scalar (FedDecorr, Shi et al. 2023, as in FNBench's program).

    z are the features [B, d] less their mean over the batch, divided by their standard deviation (of B − 1 degrees of
    freedom): so it is ``λ (B − 1)²/B`` times the mean squared correlation of two features. Zero for one sample, and for
    one feature. Use it together with a term that learns from labels.
    """

    networks: ClassVar[int | None] = 1
    weight: NonNegative

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        return why_no_features(network) or why_features_stay(network)

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        return self.weight * shared(step.output(FEATURES)), state


def shared(features: Tensor) -> Tensor:
    """``mean_{i≠j} (Σ_b z_bi z_bj)² / B`` of ``features`` [B, d]; see ``Decorrelation``."""
    samples, width = features.shape
    if samples < 2 or width < 2:
        return features.new_zeros(())
    centred = features.to(torch.promote_types(features.dtype, torch.float32))
    for _ in range(2):  # the second time takes away what rounding left of a feature that all samples share
        centred = centred - centred.mean(0)
    z = centred * (VARIANCE + centred.square().sum(0) / (samples - 1)).rsqrt()
    products = (z.T @ z).to(z.dtype).square()  # the product is of lower precision under autocast
    return (products.sum() - products.diagonal().sum()) / (width * (width - 1) * samples)
