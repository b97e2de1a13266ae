"""Two beta distributions of losses, and the probability that a label is wrong."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.onto import onto

Array = NDArray[np.float64]
EDGE = 1e-4
"""Values are held this far from 0 and 1, where a beta density may be infinite."""
SMALLEST = 1e-12
BINS = 100
"""Number of values of a posterior's table (the authors' program)."""
ITERATIONS = 10
"""Of EM (the authors' program)."""


@dataclass(frozen=True)
class BetaMixture:
    """Two beta distributions; the second one, which starts with more mass near 1, is of wrong labels."""

    alphas: tuple[float, float] = (1.0, 2.0)
    betas: tuple[float, float] = (2.0, 1.0)
    weights: tuple[float, float] = (0.5, 0.5)

    @classmethod
    def fitted(cls, values: Array) -> BetaMixture:
        """To values [n] in (0, 1), by EM with weighted moments.

        A component keeps what it was where its values have no spread.
        """
        mixture, values = cls(), np.clip(values, EDGE, 1 - EDGE)
        for _ in range(ITERATIONS):
            shares = mixture._responsibilities(values)
            moments = [_by_moments(values, share) for share in shares]
            kept = [
                new or old for new, old in zip(moments, zip(mixture.alphas, mixture.betas, strict=True), strict=True)
            ]
            total = shares.sum(1)
            mixture = cls(
                (kept[0][0], kept[1][0]),
                (kept[0][1], kept[1][1]),
                (float(total[0] / total.sum()), float(total[1] / total.sum())),
            )
        return mixture

    def wrong(self, values: Array) -> Array:
        """The probability that each value [n] is of the second component."""
        return np.asarray(self._responsibilities(np.clip(values, EDGE, 1 - EDGE))[1])

    def _responsibilities(self, values: Array) -> Array:
        from scipy.stats import beta

        parts = zip(self.weights, self.alphas, self.betas, strict=True)
        densities = np.stack([w * beta.pdf(values, a, b) for w, a, b in parts])
        densities = np.maximum(densities, SMALLEST)
        return np.asarray(densities / densities.sum(0))


def _by_moments(values: Array, share: Array) -> tuple[float, float] | None:
    """α and β of the beta distribution with the weighted mean and variance of ``values``; None without a variance."""
    mean = np.average(values, weights=share)
    variance = np.average((values - mean) ** 2, weights=share)
    if variance <= SMALLEST:
        return None
    alpha = mean * (mean * (1 - mean) / variance - 1)
    return float(alpha), float(alpha * (1 - mean) / mean)


@dataclass(frozen=True)
class WrongByLoss:
    """The probability that a label is wrong, as a function of its loss: a table over a range of losses."""

    table: Tensor  # float [BINS]
    low: Tensor  # float scalar, the loss at which the table begins
    high: Tensor  # float scalar, the loss at which it ends

    @classmethod
    def unknown(cls, like: Tensor) -> WrongByLoss:
        """1/2 for every loss; in the type and place of ``like``."""
        return cls(like.new_full((BINS,), 0.5), like.new_zeros(()), like.new_ones(()))

    @classmethod
    def fitted(cls, losses: Array, fewest: int, like: Tensor) -> WrongByLoss:
        """To the losses [n] of a client, between their percentiles 5 and 95; ``unknown`` for fewer, or equal ones.

        After its largest value the table is constant: a large loss is never a sign of a right label.
        """
        if len(losses) < fewest or not np.isfinite(losses).all():
            return cls.unknown(like)
        low, high = np.percentile(losses, [5, 95])
        if high - low <= 1e-9 * max(1.0, abs(high)):
            return cls.unknown(like)
        scaled = np.clip((np.clip(losses, low, high) - low) / (high - low), 1e-3, 1 - 1e-3)
        values = BetaMixture.fitted(scaled).wrong(np.linspace(EDGE, 1 - EDGE, BINS))
        values[values.argmax() :] = values.max()
        table = torch.from_numpy(values.clip(EDGE, 1 - EDGE))
        return cls(onto(table, like), like.new_full((), low), like.new_full((), high))

    def of(self, losses: Tensor) -> Tensor:
        """B [n] of losses [n]; of a NaN that of a large one."""
        scaled = ((losses - self.low) / (self.high - self.low)).nan_to_num(nan=1.0)
        return self.table[(scaled * BINS).clamp(0, BINS - 1).long()]
