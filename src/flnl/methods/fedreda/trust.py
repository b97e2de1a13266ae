"""Which samples a client trusts: by its losses, class by class, and by agreement with its teacher."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.stored import stored
from flnl.numerics.mixture import two_gaussians
from flnl.parts.losses.targets import of_labels

SURE = 0.7
"""The least probability with which student and teacher agree (FedReDA's program, as the rest)."""
TRUSTED = 0.6
"""The least probability of being clean with which a sample is trusted."""
FEWEST = 20
"""Samples of a class whose losses are split."""
KEPT, KEPT_LOSS = 0.8, 0.9
"""Decay of the probability, and of a sample's mean loss."""
SMOOTHING, DISTILLATION, TEMPERATURE = 0.05, 9.0, 3.0
"""Of labels; the weight of the divergence, and its temperature."""


@stored("SampleTrust")
class SampleTrust:
    """Kept on the client."""

    clean: Tensor  # float64 [n], how probably each label is right; 1 at first
    losses: Tensor  # float [n], average of each sample's losses; NaN before the first
    judged: Tensor  # int64 [n], the labels that the client held

    @classmethod
    def of(cls, labels: Tensor) -> SampleTrust:
        """Of a client that has not trained."""
        ones = torch.ones(len(labels), dtype=torch.float64)
        return cls(ones, torch.full((len(labels),), torch.nan), labels)


def log_prior(labels: Tensor, classes: int) -> Tensor:
    """Half of the logarithms of the labels' shares, float64 [K]; a class that is not there counts as one sample."""
    counts = torch.bincount(labels, minlength=classes).double()
    return (counts.clamp_min(1) / counts.sum()).log() / 2


def agreeing(student: Tensor, teacher: Tensor) -> Tensor:
    """Whether both predict one class with a probability of 0.7 or more, bool [B]; of adjusted logits [B, K]."""
    (own, first), (other, second) = (logits.softmax(1).max(1) for logits in (student, teacher))
    return (first == second) & (own >= SURE) & (other >= SURE)


def trusted_loss(student: Tensor, teacher: Tensor, labels: Tensor, clean: Tensor) -> Tensor:
    """Smoothed cross-entropy over ``clean`` rows, and 9 times the divergence from the teacher over the others.

    A scalar, of adjusted logits [B, K], labels int64 [B] and ``clean`` bool [B]; a mean over no rows is 0.
    """
    logs, soft = student.log_softmax(1), (teacher / TEMPERATURE).softmax(1)
    fitted = -(1 - SMOOTHING) * of_labels(logs, labels) - SMOOTHING * logs.mean(1)
    apart = (torch.xlogy(soft, soft) - soft * F.log_softmax(student / TEMPERATURE, 1)).sum(1)
    return _mean(fitted, clean) + DISTILLATION * _mean(apart, ~clean)


def _mean(values: Tensor, among: Tensor) -> Tensor:
    there = among.to(values.dtype)
    return (values * there).sum() / there.sum().clamp_min(1)


def verdicts(losses: Tensor, labels: Tensor) -> Tensor:
    """Which samples are clean, bool [n]: of each class with 20 or more, those of the Gaussian of smaller mean loss."""
    clean = torch.ones(len(labels), dtype=torch.bool)
    for c in labels.unique().tolist():
        own = labels == c
        if int(own.sum()) >= FEWEST:
            clean[own] = torch.from_numpy(~two_gaussians(losses[own].double().numpy()).upper)
    return clean


def updated(probability: Tensor, clean: Tensor) -> Tensor:
    """``0.8 c + 0.2 v`` [n] of probabilities c and verdicts v bool [n]; of clean labels, three verdicts undo three."""
    return KEPT * probability + (1 - KEPT) * clean.double()
