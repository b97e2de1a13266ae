"""Samples of small loss, and the share of samples that a round leaves out."""

import math
from typing import Literal

import torch
from torch import Tensor

from flnl.numerics.rounding import TOLERANCE

Schedule = Literal["paper", "released"]


def forget_rate(round: int, rate: float, num_gradual: int, exponent: float, schedule: Schedule) -> float:
    """f(t), the share of samples that is left out in round t (from 0).

    ``paper``: ``τ min(t^c / T_k, 1)`` (Han et al. 2018, Algorithm 1). ``released``: their code, ``τ^c t / (T_k - 1)``
    before t = T_k and τ from then on. (Its first epoch of training is t = 1.)

    >>> [forget_rate(t, 0.2, 4, 1.0, "paper") for t in (0, 2, 4, 9)]
    [0.0, 0.1, 0.2, 0.2]
    """
    if schedule == "paper":
        return rate * min(math.pow(round, exponent) / num_gradual, 1.0)
    return rate if round >= num_gradual else math.pow(rate, exponent) * round / max(num_gradual - 1, 1)


def smallest(losses: Tensor, candidates: Tensor, forget: float | Tensor) -> Tensor:
    """The ``max(1, ⌊(1 - f) |candidates|⌋)`` samples of smallest loss among ``candidates``, all [B], as bool [B].

    Samples of equal loss are chosen in the order of the batch. Without candidates, nothing is chosen.

    >>> smallest(torch.tensor([3.0, 1.0, 2.0, 0.0]), torch.tensor([True, True, True, False]), 0.3)
    tensor([False,  True,  True, False])
    """
    # in float64 and with a margin, since (1 - 0.9) * 10 is below 1
    count = ((1 - forget) * candidates.sum().double() + TOLERANCE).floor().clamp_min(1)
    ranks = torch.where(candidates, losses.detach(), torch.inf).argsort(stable=True).argsort(stable=True)
    return (ranks < count) & candidates
