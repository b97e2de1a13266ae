"""Metrics of models, labels and estimates against the truth: accuracy, detection, correction, quality."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.images import Labels
from flnl.numerics.scaling import quality

Mask = NDArray[np.bool_]

Array = NDArray[np.float64]


def share_of(part: int, whole: int) -> float:
    """``part / whole``; NaN if ``whole`` is 0."""
    return part / whole if whole else float("nan")


def detection(flagged: Mask, wrong: Mask) -> dict[str, float]:
    """Precision, recall and F1 of ``flagged`` [n] as a detector of ``wrong`` [n]; NaN where a denominator is 0.

    >>> detection(np.array([True, True, False]), np.array([True, False, True]))
    {'precision': 0.5, 'recall': 0.5, 'f1': 0.5}
    """
    hits, detected, actual = (int(mask.sum()) for mask in (flagged & wrong, flagged, wrong))
    return {
        "precision": share_of(hits, detected),
        "recall": share_of(hits, actual),
        "f1": share_of(2 * hits, detected + actual),
    }


def filter_accuracy(clean: Mask, given: Labels, true: Labels) -> float:
    """Share of samples [n] whose flag ``clean`` agrees with whether the label is correct (FedDiv, Figs. 3, 5)."""
    return share_of(int((clean == (given == true)).sum()), len(clean))


def true_quality(true: Labels, given: Labels) -> float:
    """The actual share of correct labels among a client's [n]; FedES's released code uses the nominal rate."""
    return float((true == given).mean()) if len(true) else float("nan")


def squared_error(rho: Sequence[float] | Array, truth: Sequence[float] | Array) -> float:
    """Mean of ``(ρ_n - q_n)²`` over clients (FedES, Table 4)."""
    return float(((np.asarray(rho) - np.asarray(truth)) ** 2).mean())


def squared_error_floor(truth: Sequence[float] | Array) -> float:
    """The error that a perfect estimate of q [N] has after it is scaled to [0, 1] over the clients."""
    return squared_error(quality(truth), truth)


def absolute_error(estimate: Sequence[float] | Array, truth: Sequence[float] | Array) -> float:
    """Mean of ``|e_n - t_n|`` over the clients that have an estimate; NaN if none has."""
    gap = np.abs(np.asarray(estimate, np.float64) - np.asarray(truth, np.float64))
    known = gap[~np.isnan(gap)]
    return float(known.mean()) if len(known) else float("nan")


def l1_error(shares: Array, true: Array) -> float:
    """``Σ_c |q_c - p_c|`` of two distributions [K], in [0, 2]."""
    return float(np.abs(np.asarray(shares) - np.asarray(true)).sum())


@dataclass(frozen=True)
class Memorization:
    """Shares of a model's predictions on correctly and on wrongly labelled samples (FLR, Table 1).

    The shares of each group sum to 1; they are NaN if the group is empty.
    """

    clean_correct: float
    clean_wrong: float
    noisy_correct: float  # predicts the true class
    noisy_memorized: float  # predicts the given label
    noisy_wrong: float  # predicts neither


def memorization(predicted: Labels, given: Labels, true: Labels) -> Memorization:
    """Memorization of samples [n] by one model: the server's after aggregation, or a client's after its training."""
    clean = given == true
    right, copied = predicted == true, predicted == given
    well, badly = int(clean.sum()), int((~clean).sum())
    return Memorization(
        clean_correct=share_of(int((clean & right).sum()), well),
        clean_wrong=share_of(int((clean & ~right).sum()), well),
        noisy_correct=share_of(int((~clean & right).sum()), badly),
        noisy_memorized=share_of(int((~clean & copied).sum()), badly),
        noisy_wrong=share_of(int((~clean & ~right & ~copied).sum()), badly),
    )


def mean_memorization(clients: Sequence[Memorization]) -> Memorization:
    """Client-side memorization of a round: each share's mean over the noisy clients for which it is defined.

    Clients without a wrong label are excluded.
    """
    noisy = [c for c in clients if not np.isnan(c.noisy_correct)]
    shares = {f.name: np.array([getattr(c, f.name) for c in noisy], np.float64) for f in fields(Memorization)}
    known = {name: values[~np.isnan(values)] for name, values in shares.items()}
    return Memorization(**{name: float(v.mean()) if len(v) else float("nan") for name, v in known.items()})


def training_stability(moved: Sequence[float]) -> float:
    """``(1/|S|) Σ_k ‖θ_k - θ‖²`` over a cohort, from the clients' squared distances (FedDiv, Fig. 4); NaN if empty."""
    return float(np.mean(moved)) if len(moved) else float("nan")


def accuracy_and_loss(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Accuracy and mean cross-entropy of ``logits`` [n, K]."""
    right = (logits.argmax(1) == labels).double().mean()
    return float(right), float(F.cross_entropy(logits.double(), labels))


def worst_client(right: Mask, labels: Labels, classes: NDArray[np.int64]) -> float | None:
    """The accuracy on test samples [n] by a client's classes, of the client for whom it is lowest.

    A client's is the mean over its classes of how many test samples of each are predicted ``right``, weighted by
    ``classes`` int64 [clients, K], its samples of each: clients with the same classes have the same. Classes of which
    no sample is tested count for nobody; None if there are no others.

    >>> worst_client(np.array([True, False, True]), np.array([0, 0, 1]), np.array([[5, 0], [1, 3]]))
    0.5
    """
    tested = np.bincount(labels, minlength=classes.shape[1])
    there = tested > 0
    accuracy = np.bincount(labels[right], minlength=classes.shape[1])[there] / tested[there]
    counts = classes[:, there]
    some = counts[counts.any(1)]
    return float(((some * accuracy).sum(1) / some.sum(1)).min()) if len(some) else None


def confusion(true: Labels, held: Labels, num_classes: int) -> list[list[int]]:
    """Counts of samples [C, C]: rows are true classes, columns held labels.

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
    [[1, 1], [0, 1]]
    """
    counts = np.bincount(true * num_classes + held, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes).tolist()
