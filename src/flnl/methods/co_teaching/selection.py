"""Which samples of a batch two networks teach each other, and the share of samples that they leave out."""

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

Schedule = Literal["paper", "released"]


def forget_rate(round: int, rate: float, num_gradual: int, exponent: float, schedule: Schedule) -> float:
    """f(t), the share of samples that is left out in round t (from 0).

    ``paper``: ``τ min(t^c / T_k, 1)`` (Han et al. 2018, Algorithm 1). ``released``: their code, ``τ^c t / (T_k - 1)``
    before round T_k and τ from then on.

    >>> [forget_rate(t, 0.2, 4, 1.0, "paper") for t in (0, 2, 4, 9)]
    [0.0, 0.1, 0.2, 0.2]
    """
    if schedule == "paper":
        return rate * min(math.pow(round, exponent) / num_gradual, 1.0)
    return rate if round >= num_gradual else math.pow(rate, exponent) * round / max(num_gradual - 1, 1)


class Taught(NamedTuple):
    """The selection of one batch; all are bool [B]."""

    candidates: Tensor  # samples among which the networks choose
    by_first: Tensor  # those that the first network chooses, and the second learns
    by_second: Tensor  # those that the second network chooses, and the first learns


def selection(first: Tensor, second: Tensor, candidates: Tensor, forget: float | Tensor) -> Taught:
    """Each network's ``max(1, ⌊(1 - f) |candidates|⌋)`` samples of smallest loss among ``candidates`` bool [B].

    Losses are [B]; those of equal loss are chosen in the order of the batch. Without candidates, nothing is chosen.
    """
    # in float64 and with a margin, since (1 - 0.9) * 10 is below 1
    count = ((1 - forget) * candidates.sum().double() + 1e-9).floor().clamp_min(1)
    return Taught(candidates, *(_smallest(losses, candidates, count) for losses in (first, second)))


def _smallest(losses: Tensor, among: Tensor, count: Tensor) -> Tensor:
    ranks = torch.where(among, losses.detach(), torch.inf).argsort(stable=True).argsort(stable=True)
    return (ranks < count) & among


def disagreement(first: Tensor, second: Tensor) -> Tensor:
    """Whether the networks predict different classes, bool [B], from their logits [B, K]."""
    return first.argmax(1) != second.argmax(1)
