"""A mixture of von Mises-Fisher distributions of a client's unit features, with a uniform background."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.onto import onto
from flnl.core.stored import stored

EPSILON = 1e-8
"""Added to lengths and sums that divide (FedRG's program)."""
TEMPERATURE = 2.0
"""By which logits of responsibilities are divided (FedRG's program)."""
LEAST_SHARPNESS, MOST_SHARPNESS = 0.2, 2.0
"""Bounds of how much the agreement of two views sharpens or flattens a sample's responsibilities."""
KAPPAS = 0.5, 100.0
BACKGROUND = 0.001, 0.2
"""Bounds of concentrations and of the background's weight."""
PRIOR, SMOOTHING = 5.0, 0.5
"""Pseudo-counts of the clusters together; of the background, and of a class in each cluster."""
TERMS = 400
"""Of the series of a Bessel function; enough for arguments up to 200."""


def unit(features: Tensor) -> Tensor:
    """Features [B, d] of length 1."""
    lengths: Tensor = features.norm(dim=1, keepdim=True)
    return features / (lengths + EPSILON)


def concentration(length: Tensor, width: int) -> Tensor:
    """``R (d - R²) / (1 - R²)`` for mean lengths R of unit vectors in R^d (Banerjee et al., JMLR 2005, Eq. 4.4)."""
    return length * (width - length.square()) / (1 - length.square()).clamp_min(1e-6)


def log_normaliser(kappa: Tensor, width: int) -> Tensor:
    """``log C_d(κ)``: the logarithm of the von Mises-Fisher density is this plus ``κ ⟨z, μ⟩``."""
    order = width / 2 - 1
    half = (kappa / 2).log()[..., None]
    m = torch.arange(TERMS, dtype=kappa.dtype, device=kappa.device)
    bessel = ((2 * m + order) * half - torch.lgamma(m + 1) - torch.lgamma(m + order + 1)).logsumexp(-1)
    return order * kappa.log() - width / 2 * math.log(2 * math.pi) - bessel


def log_uniform(width: int) -> float:
    """The logarithm of the uniform density on the unit sphere of R^d."""
    return math.lgamma(width / 2) - math.log(2) - width / 2 * math.log(math.pi)


@stored("FeatureClusters")
class FeatureClusters:
    """Kept on the client: the mixture, and which clusters are typical for each class."""

    means: Tensor  # float [G, d], of length 1
    kappas: Tensor  # float [G]
    weights: Tensor  # float [G], sum to 1
    background: Tensor  # float scalar
    typical: Tensor  # float [K, G], rows sum to 1
    median: Tensor  # float scalar, of the two views' concentrations, over batches; NaN before the first

    @classmethod
    def of(cls, means: Tensor, classes: int) -> FeatureClusters:
        """At the first visit: ``means`` [G, d] of any length, and nothing is typical."""
        clusters = len(means)
        ones = means.new_ones(clusters)
        typical = means.new_full((classes, clusters), 1 / clusters)
        return cls(
            F.normalize(means, dim=1),
            5 * ones,
            ones / clusters,
            means.new_full((), 0.05),
            typical,
            means.new_full((), math.nan),
        )

    def to(self, device: torch.device) -> FeatureClusters:
        """The same on ``device``."""
        return FeatureClusters(**{field.name: onto(getattr(self, field.name), device) for field in fields(self)})

    def agreeing(self, first: Tensor, second: Tensor) -> Tensor:
        """The concentrations [B] of two views' unit features, [B, d] each."""
        return concentration((first + second).norm(dim=1) / 2, first.shape[1])

    def with_median(self, kappas: Tensor, momentum: float) -> FeatureClusters:
        """With the median of a batch's concentrations [B]; of an even number the lower one in the middle."""
        middle = kappas.sort().values[(len(kappas) - 1) // 2]
        following = (1 - momentum) * self.median + momentum * middle
        return replace(self, median=torch.where(self.median.isnan(), middle, following))

    def responsibilities(self, first: Tensor, kappas: Tensor, *, density: bool) -> Tensor:
        """Those of the background, then of the clusters, [B, 1 + G], for unit features [B, d] of the first view.

        Concentrations ``kappas`` [B] that are large beside the median sharpen them. With ``density`` they are those of
        the densities, otherwise of ``κ ⟨z, μ⟩ + log π`` against ``log π_0``, divided by a temperature.
        """
        usual = self.median.clamp_min(EPSILON)  # it is 0 where most samples have no feature but zeros
        sharpness = (kappas / usual).clamp(LEAST_SHARPNESS, MOST_SHARPNESS)
        if density:
            own = self.kappas * sharpness[:, None]
            logs = own * (first @ self.means.T) + log_normaliser(own, first.shape[1])
            background = self.background.log() + log_uniform(first.shape[1])
        else:
            logs, background = self.kappas * (first @ self.means.T) * sharpness[:, None], self.background.log()
        logs = torch.cat([background.expand(len(first), 1), logs + self.weights.log()], 1)
        return (logs if density else logs / TEMPERATURE).softmax(1)

    def scores(self, responsibilities: Tensor, labels: Tensor) -> Tensor:
        """``Σ_g B_yg γ_g`` [B]: how typical each sample's clusters are for its label, int64 [B]."""
        return (self.typical[labels] * responsibilities[:, 1:]).sum(1)

    def updated(
        self, first: Tensor, responsibilities: Tensor, labels: Tensor, clean: Tensor, momentum: float, *, absent: bool
    ) -> FeatureClusters:
        """After a batch of unit features [B, d] with labels int64 [B], of which ``clean`` bool [B] are right.

        ``absent``: a class without a clean sample becomes less typical for any cluster, as in FedRG's program.
        """
        background, own = responsibilities[:, 0], responsibilities[:, 1:]
        keep, sums, counts = 1 - momentum, own.T @ first, own.sum(0)
        width, clusters = first.shape[1], len(self.means)
        found = concentration(sums.norm(dim=1) / (counts + EPSILON), width).clamp(*KAPPAS)
        share = (counts + PRIOR / clusters) / (counts.sum() + PRIOR)
        outside = (background.sum() + SMOOTHING) / (len(first) + SMOOTHING)
        classes = torch.arange(len(self.typical), device=labels.device)
        members = ((labels == classes[:, None]) & clean).to(own.dtype)
        rows = members @ own + SMOOTHING
        typical = keep * self.typical + momentum * rows / rows.sum(1, keepdim=True)
        typical = typical / typical.sum(1, keepdim=True)
        there = members.any(1, keepdim=True)
        return replace(
            self,
            means=F.normalize(keep * self.means + momentum * F.normalize(sums, dim=1), dim=1),
            kappas=keep * self.kappas + momentum * found,
            weights=keep * self.weights + momentum * share,
            background=(keep * self.background + momentum * outside).clamp(*BACKGROUND),
            typical=typical if absent else torch.where(there, typical, self.typical),
        )
