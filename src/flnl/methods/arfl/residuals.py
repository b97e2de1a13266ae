"""How far clients' values are from a robust line through their order, coordinate by coordinate (ARFL).

Values are [m, d] in float64: m clients, d coordinates. Every coordinate is treated by itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from flnl.numerics.roots import square_root

CONSISTENCY = 1.4826
"""Makes a median of absolute residuals an estimate of the standard deviation of normal residuals."""
LEAST_SCALE = 1e-7
"""Added to the scale of residuals, so that values on the line have none (the authors' program)."""


@dataclass(frozen=True)
class Judged:
    """The clients' values as the line sees them."""

    weights: Tensor  # [m, d] in (0, 1]; 1 on and near the line
    line: Tensor  # [m, d], the line's value at the rank of each client

    @property
    def confidence(self) -> Tensor:
        """``Σ_j ω_ij sd_i(ω_ij)`` [m]: coordinates on which all weights agree do not count; sd over clients, ddof 1."""
        return (self.weights * self.weights.std(0)).sum(1)


def judged(values: Tensor, lam: float) -> Judged:
    """Weights of ``values`` [m, d] by their residuals from the repeated-median line, for m of at least 3.

    With r the residuals, ``τ = 1.4826 (1 + 5/(m-1)) med(|r| without its smallest) + 1e-7`` and ``h_i = √(1 - H_ii)``, H
    the hat matrix of the line, the weight is ``min(1, λ √(2/m) h_i τ / |r_i|)``. Of equal values the earlier client has
    the smaller rank.
    """
    count = len(values)
    ordered, order = values.sort(dim=0, stable=True)
    ranks = order.argsort(dim=0)
    slope, intercept = repeated_median(ordered)
    line = intercept + slope * ranks
    away = (values - line).abs()
    scale = CONSISTENCY * (1 + 5 / (count - 1)) * middle(away.sort(dim=0).values[1:]) + LEAST_SCALE
    place = torch.arange(count, dtype=values.dtype, device=values.device) - (count - 1) / 2
    leverage = square_root(1 - 1 / count - place.square() / place.square().sum())[ranks]
    weights = (lam * (2 / count) ** 0.5 * leverage * scale / away).clamp(max=1)
    return Judged(weights, line)


def repeated_median(ordered: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and intercept, [d] each, of the line through (i, y_i), i from 0, of ascending values ``ordered`` [m, d].

    The slope is ``med_i med_{l≠i} (y_i - y_l) / (i - l)`` (Siegel 1982). At the middle rank (m-1)/2, the line has the
    median of the values.

    >>> repeated_median(torch.tensor([[1.0], [2.0], [3.0], [40.0]]))
    (tensor([1.]), tensor([1.]))
    """
    count = len(ordered)
    place = torch.arange(count, dtype=ordered.dtype, device=ordered.device)
    slopes = []
    for i in range(count):
        others, places = (torch.cat([one[:i], one[i + 1 :]]) for one in (ordered, place))
        through = (ordered[i] - others) / (place[i] - places)[:, None]
        slopes.append(middle(through.sort(dim=0).values))
    slope = middle(torch.stack(slopes).sort(dim=0).values)
    return slope, middle(ordered) - slope * (count - 1) / 2


def middle(ordered: Tensor) -> Tensor:
    """The median [d] of ascending values [m, d]: the middle row, or the mean of the two middle ones.

    >>> middle(torch.tensor([[1.0], [2.0], [4.0], [100.0]]))
    tensor([3.])
    """
    count = len(ordered)
    return (ordered[(count - 1) // 2] + ordered[count // 2]) / 2
