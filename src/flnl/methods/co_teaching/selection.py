"""Which samples of a batch two networks teach each other."""

from typing import NamedTuple

from torch import Tensor

from flnl.numerics.small_loss import smallest


class Taught(NamedTuple):
    """The selection of one batch; all are bool [B]."""

    candidates: Tensor  # samples among which the networks choose
    by_first: Tensor  # those that the first network chooses, and the second learns
    by_second: Tensor  # those that the second network chooses, and the first learns


def selection(first: Tensor, second: Tensor, candidates: Tensor, forget: float | Tensor) -> Taught:
    """Each network's ``max(1, ⌊(1 - f) |candidates|⌋)`` samples of smallest loss among ``candidates`` bool [B].

    Losses are [B]; those of equal loss are chosen in the order of the batch. Without candidates, nothing is chosen.
    """
    return Taught(candidates, *(smallest(losses, candidates, forget) for losses in (first, second)))


def disagreement(first: Tensor, second: Tensor) -> Tensor:
    """Whether the networks predict different classes, bool [B], from their logits [B, K]."""
    return first.argmax(1) != second.argmax(1)
