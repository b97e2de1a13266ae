"""A client's noise matrix: the probability of each given label (row) of a true class (column)."""

from __future__ import annotations

import torch
from torch import Tensor

from flnl.core.stored import stored

MARGIN, LEAST = 1e-6, 2e-6
"""By how much a probability may miss its threshold, and the smallest threshold."""


@stored("NoiseMatrix")
class NoiseMatrix:
    """Read in the client's visit, and kept for the record alone: the next visit estimates it again."""

    values: Tensor  # float64 [K, K], columns sum to 1
    noise: Tensor  # float64 scalar, the share of wrong labels that the counts imply

    @classmethod
    def of(cls, counts: Tensor) -> NoiseMatrix:
        """Columns of the counts [K, K] divided by their sums, which are positive."""
        return cls(counts / counts.sum(0), 1 - counts.trace() / counts.sum())


def confident_joint(probabilities: Tensor, labels: Tensor) -> Tensor:
    """How often samples with each label (row) are guessed with confidence to be of each class (column), float64 [K, K].

    The threshold of class c is the mean probability of c over the samples with label c, at least 2e-6; without such
    samples, twice the largest probability, which nothing reaches. A sample is guessed to be of the class whose
    threshold it reaches, of its most probable class if there are several; it counts for nothing if there is none. The
    diagonal is at least 1 (Northcutt et al. 2021, as FedEFC's program calls it).

    Args:
        probabilities: float64 [n, K].
        labels: int64 [n].
    """
    classes = probabilities.shape[1]
    sizes = torch.bincount(labels, minlength=classes)
    own = probabilities.gather(1, labels[:, None])[:, 0]
    sums = torch.zeros(classes, dtype=probabilities.dtype).index_add_(0, labels, own)
    thresholds = torch.where(sizes > 0, sums / sizes.clamp_min(1), 2 * probabilities.max()).clamp_min(LEAST)
    reached = probabilities >= thresholds - MARGIN
    guesses = torch.where(reached.sum(1) > 1, probabilities.argmax(1), reached.int().argmax(1))
    sure = reached.any(1)
    pairs = torch.bincount(labels[sure] * classes + guesses[sure], minlength=classes**2)
    counts = pairs.view(classes, classes).double()
    counts.diagonal().clamp_(min=1)
    return counts
