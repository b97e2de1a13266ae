"""Transition matrices T [K, K]: the probability of each given label (column) of a true class (row).

Estimates are float64, from a network's class probabilities [n, K] on a client's samples.
"""

import math

import torch
from torch import Tensor

from flnl.core.stored import stored

SMALLEST = 1e-6
"""The smallest entry of a revised matrix, the smallest probability that a loss divides by, and the ε of a mixture."""


@stored("Slack")
class Slack:
    """Kept on the client: Δ, what it has learned to add to its transition matrix."""

    values: Tensor  # float [K, K]
    moments: tuple[Tensor, Tensor, Tensor] | None = None  # Adam's, if it goes on: mean, square [K, K], number of steps


@stored("TransitionMatrix")
class TransitionMatrix:
    """Kept on the client: its estimate of T, and the classes that its samples were predicted to be of."""

    values: Tensor  # float64 [K, K], rows sum to 1
    predicted: Tensor  # float64 [K], share of its samples that the model predicts as each class

    def noise(self, slack: Slack | None = None) -> float:
        """The share of wrong labels that T implies, ``Σ_i s_i (1 - T_ii)`` with s the predicted shares.

        With ``slack``, T is the revised matrix.
        """
        matrix = self.values if slack is None else revised(self.values, slack.values.double())
        return float(self.predicted @ (1 - matrix.diagonal()))


def revised(matrix: Tensor, slack: Tensor) -> Tensor:
    """T + Δ with entries of at least 1e-6, rows divided by their sums.

    The gradient by Δ is also that of entries at the bound, so that an entry of 0 can grow.
    """
    entries = matrix + slack
    bounded = torch.where(entries < SMALLEST, SMALLEST + (entries - entries.detach()), entries)
    return bounded / bounded.sum(1, keepdim=True)


def confident_counts(probabilities: Tensor, labels: Tensor, threshold: float) -> Tensor:
    """How often each label, int64 [n], is given to samples predicted with confidence, [K, K].

    A sample whose largest probability exceeds ``threshold`` counts as one of the predicted class.
    """
    classes = probabilities.shape[1]
    confidence, predicted = probabilities.max(1)
    sure = confidence > threshold
    pairs = predicted[sure] * classes + labels[sure]
    return torch.bincount(pairs, minlength=classes**2).view(classes, classes).double()


def normalized(counts: Tensor, min_count: int = 0) -> Tensor:
    """Rows divided by their sums; a row that sums to 0, or to less than ``min_count``, becomes the identity's.

    >>> normalized(torch.tensor([[3.0, 1.0], [0.0, 0.0]])).tolist()
    [[0.75, 0.25], [0.0, 1.0]]
    """
    counts = counts.double()
    totals = counts.sum(1, keepdim=True)
    identity = torch.eye(len(counts), dtype=torch.float64)
    return torch.where((totals > 0) & (totals >= min_count), counts / totals.clamp_min(1e-300), identity)


def from_anchors(probabilities: Tensor, percentile: float | None) -> Tensor:
    """Row i is the prediction of class i's anchor, the sample with the largest probability of i (Patrini et al. 2017).

    With a ``percentile``, samples at or above that percentile of p_i are no candidates, since the largest values may be
    outliers; a percentile between two values is the larger one. If no candidate is left, all samples are candidates. Of
    equal samples the first is the anchor. Without samples, T is the identity.
    """
    count, classes = probabilities.shape
    probabilities = probabilities.double()
    if count == 0:
        return torch.eye(classes, dtype=torch.float64)
    candidates = probabilities
    if percentile is not None:
        place = math.ceil(percentile / 100 * (count - 1) - 1e-9)
        below = probabilities < probabilities.sort(0).values[place]
        candidates = torch.where(below | ~below.any(0), probabilities, -1.0)
    return normalized(probabilities[candidates.argmax(0)])


def without_empty_columns(matrix: Tensor) -> Tensor:
    """T itself if every label has a positive probability under some class, else ``(1 - ε) T + ε / K`` with ε = 1e-6."""
    if bool((matrix > 0).any(0).all()):
        return matrix
    return (1 - SMALLEST) * matrix + SMALLEST / len(matrix)
