"""Measures of models, labels and estimates against the truth: accuracy, detection, correction, quality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch.nn.functional as F
from numpy.typing import NDArray
from scipy.stats import rankdata
from torch import Tensor

from flnl.core.images import Labels
from flnl.numerics.scaling import quality

Mask = NDArray[np.bool_]

Array = NDArray[np.float64]


def share_of(part: int, whole: int) -> float:
    """``part / whole``, NaN of nothing."""
    return part / whole if whole else float("nan")


def detection(flagged: Mask, wrong: Mask) -> dict[str, float]:
    """Precision, recall and F1 of ``flagged`` [n] as a detector of ``wrong`` [n]; NaN where there is nothing to count.

    >>> detection(np.array([True, True, False]), np.array([True, False, True]))
    {'precision': 0.5, 'recall': 0.5, 'f1': 0.5}
    """
    hit, found, there = (int(mask.sum()) for mask in (flagged & wrong, flagged, wrong))
    return {"precision": share_of(hit, found), "recall": share_of(hit, there), "f1": share_of(2 * hit, found + there)}


def detection_auc(score: Array, wrong: Mask) -> float:
    """Probability that a ``wrong`` sample scores higher than a right one, ties counting half; NaN where one is missing.

    The area under the curve of true against false positives. Of flags in place of scores it is the mean of the two
    rates of right answers.

    >>> detection_auc(np.array([0.9, 0.5, 0.4, 0.1]), np.array([True, False, True, False]))
    0.75
    """
    there = int(wrong.sum())
    above = float(rankdata(score)[wrong].sum()) - there * (there + 1) / 2
    pairs = there * (len(wrong) - there)
    return above / pairs if pairs else float("nan")


def filter_accuracy(clean: Mask, given: Labels, true: Labels) -> float:
    """Share of samples [n] with a right flag: ``clean`` where the given label is the true one (FedDiv, Figs. 3, 5)."""
    return share_of(int((clean == (given == true)).sum()), len(clean))


def true_quality(true: Labels, given: Labels) -> float:
    """The realised share of right labels among a client's [n]; the released program takes the nominal rate."""
    return float((true == given).mean()) if len(true) else float("nan")


def squared_error(rho: Sequence[float] | Array, truth: Sequence[float] | Array) -> float:
    """Mean of ``(ρ_n - q_n)²`` over clients (FedES, Table 4)."""
    return float(((np.asarray(rho) - np.asarray(truth)) ** 2).mean())


def squared_error_floor(truth: Sequence[float] | Array) -> float:
    """The error that a perfect estimate of q [N] still has, once it is scaled to [0, 1] over the clients."""
    return squared_error(quality(truth), truth)


def absolute_error(estimate: Sequence[float] | Array, truth: Sequence[float] | Array) -> float:
    """Mean of ``|e_n - t_n|`` over the clients of which there is an estimate; NaN where there is none."""
    gap = np.abs(np.asarray(estimate, np.float64) - np.asarray(truth, np.float64))
    known = gap[~np.isnan(gap)]
    return float(known.mean()) if len(known) else float("nan")


def rank_correlation(rho: Sequence[float] | Array, truth: Sequence[float] | Array) -> float:
    """Spearman's: the correlation of ranks, ties at their mean rank; NaN where one side is all equal."""
    a, b = (ranks - ranks.mean() for ranks in (rankdata(rho), rankdata(truth)))
    scale = np.sqrt((a @ a) * (b @ b))
    return float(a @ b / scale) if scale > 0 else float("nan")


def l1_error(shares: Array, true: Array) -> float:
    """``Σ_c |q_c - p_c|``, in [0, 2] of two distributions [K]."""
    return float(np.abs(np.asarray(shares) - np.asarray(true)).sum())


@dataclass(frozen=True)
class Memorization:
    """What a model predicts of samples with right and with wrong labels, as shares of each group (FLR, Table 1).

    Each group sums to 1; NaN of a group that is empty.
    """

    clean_correct: float
    clean_wrong: float
    noisy_correct: float  # the true class
    noisy_memorized: float  # the given one
    noisy_wrong: float  # neither


def memorization(predicted: Labels, given: Labels, true: Labels) -> Memorization:
    """Of one model on samples [n]: the server's after aggregation, or a client's just after its training."""
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
    """Local memorization of a round: the mean over its noisy clients, each share over those that have such samples.

    Clients without a wrong label are left out of it altogether.
    """
    noisy = [c for c in clients if not np.isnan(c.noisy_correct)]
    shares = {f.name: np.array([getattr(c, f.name) for c in noisy], np.float64) for f in fields(Memorization)}
    known = {name: values[~np.isnan(values)] for name, values in shares.items()}
    return Memorization(**{name: float(v.mean()) if len(v) else float("nan") for name, v in known.items()})


def training_stability(moved: Sequence[float]) -> float:
    """``(1/|S|) Σ_k ‖θ_k - θ‖²`` over a cohort, from its members' (FedDiv, Fig. 4); NaN of an empty one."""
    return float(np.mean(moved)) if len(moved) else float("nan")


def accuracy_and_loss(logits: Tensor, labels: Tensor) -> tuple[float, float]:
    """Share of rows of ``logits`` [n, K] whose largest entry is at the label, and the mean cross-entropy."""
    right = (logits.argmax(1) == labels).double().mean()
    return float(right), float(F.cross_entropy(logits.double(), labels))


def confusion(true: Labels, held: Labels, num_classes: int) -> list[list[int]]:
    """Counts of samples [C, C]: rows are the true class, columns the label that is held.

    >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
    [[1, 1], [0, 1]]
    """
    counts = np.bincount(true * num_classes + held, minlength=num_classes**2)
    return counts.reshape(num_classes, num_classes).tolist()


def summarise(evaluations: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The numbers that papers report, from all evaluations in order.

    ``best`` is the maximum over evaluations, an oracle over the test set; ``mean_last_10`` is over the last ten
    evaluations; ``at_best_validation`` is the test accuracy where the validation accuracy was highest (the first time).
    """
    accuracies = [e["accuracy"] for e in evaluations]
    if not accuracies:
        return {}
    found = {"best": max(accuracies), "last": accuracies[-1], "mean_last_10": float(np.mean(accuracies[-10:]))}
    if "validation_accuracy" in evaluations[-1]:
        held_out = [e["validation_accuracy"] for e in evaluations]
        found["at_best_validation"] = accuracies[int(np.argmax(held_out))]
    return found
