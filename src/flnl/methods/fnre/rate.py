"""The share of wrong labels that explains how often a model agrees with them.

A label is wrong with probability ρ, whatever the sample is, given its class. If the model is right on a share a of the
client's samples, and agrees by chance with a share q of wrong labels, it agrees with g = (1 - ρ) a + ρ q of them.
"""

from typing import Literal

import torch
from torch import Tensor

LEAST = 0.1
"""The least a - q at which there is an estimate: below it the model is hardly better than chance."""
WORST_CONDITION = 50.0
"""The largest condition number of a confusion matrix that classes' shares are estimated with."""

Wrong = Literal["uniform", "next"]
"""Where wrong labels go: to all other classes alike, or to the next class."""


def rates(agreement: Tensor, right: Tensor, by_chance: Tensor) -> Tensor:
    """``ρ = (a - g) / (a - q)`` of each client, float64 [N]; not clipped. NaN where a - q is below ``LEAST``.

    Args:
        agreement: g, float64 [N]; NaN for a client without samples.
        right: a, float64 [N].
        by_chance: q, float64 [N].
    """
    spread = right - by_chance
    return torch.where(spread >= LEAST, (right - agreement) / spread, torch.nan)


def destinations(classes: int, wrong: Wrong) -> Tensor:
    """W float64 [K, K]: the distribution of a wrong label, given the class."""
    if wrong == "next":
        return torch.eye(classes, dtype=torch.float64).roll(1, dims=1)
    return (1 - torch.eye(classes, dtype=torch.float64)) / (classes - 1)


def expectations(confusion: Tensor, prior: Tensor, wrong: Wrong) -> tuple[Tensor, Tensor]:
    """A and q of clients, ``Σ_y π_y M_yy`` and ``Σ_yj π_y W_yj M_yj``, float64 [N] each.

    Where wrong labels go to all other classes alike, q is (1 - a)/(K - 1), whatever the model confuses.

    Args:
        confusion: M float64 [K, K], rows sum to 1.
        prior: π float64 [N, K], the shares of the classes on each client.
        wrong: where wrong labels go.
    """
    return prior @ confusion.diagonal(), prior @ (destinations(len(confusion), wrong) * confusion).sum(1)


def class_shares(confusion: Tensor, predicted: Tensor) -> Tensor:
    """π with ``Mᵀ π = h`` for each row h of ``predicted`` [N, K], float64; negative entries 0, and normalised."""
    found: Tensor = torch.linalg.solve(confusion.T, predicted.T).T.clamp_min(0)
    return found / found.sum(1, keepdim=True).clamp_min(1e-12)


def variances(
    rate: Tensor,
    agreement: Tensor,
    right: Tensor,
    by_chance: Tensor,
    wrong: Wrong,
    classes: int,
    samples: Tensor,
    clean: int,
) -> Tensor:
    """The variance of each ρ by the delta method, float64 [N].

    A clean sample adds ``(1 - ρ) [f = y] + ρ W_yf`` to ``(1 - ρ) a + ρ q``. The part that comes from it, which all
    clients share, does not fall with a client's number of ``samples``.

    Args:
        rate: ρ, float64 [N].
        agreement: g, float64 [N].
        right: a, float64 [N].
        by_chance: q, float64 [N].
        wrong: where wrong labels go.
        classes: K.
        samples: n of each client, float64 [N].
        clean: m, the number of clean samples by which a and q were measured.
    """
    own = agreement * (1 - agreement) / samples
    entry = 1.0 if wrong == "next" else 1 / (classes - 1)  # of W, where it is not 0
    mean = (1 - rate) * right + rate * by_chance
    shared = ((1 - rate).square() * right + rate.square() * entry * by_chance - mean.square()) / clean
    return (own + shared) / (right - by_chance) ** 2


def covariance(one: Tensor, other: Tensor, right: Tensor, classes: int, clean: int) -> Tensor:
    """The covariance of two clients' ρ, which share a; for wrong labels that go to all other classes alike."""
    spread = (right * classes - 1) / (classes - 1)
    return _shared(one, classes) * _shared(other, classes) * right * (1 - right) / (clean * spread**2)


def _shared(rate: Tensor, classes: int) -> Tensor:
    return 1 - rate * classes / (classes - 1)
