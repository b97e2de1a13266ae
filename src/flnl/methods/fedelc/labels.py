"""Soft labels that gradients change: softmax of one learned vector for each of a client's n samples."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.stored import stored


def label_gradient(values: Tensor, predicted: Tensor, labels: Tensor, compatibility: float | Tensor) -> Tensor:
    """The gradient [B, K] by ỹ [B, K] of ``KL(p ‖ y) / K + a CE(y, label)`` with ``y = softmax(ỹ)``, of each sample.

    It is ``(y - p) / K + a (y - onehot(label))``.

    Args:
        values: ỹ, [B, K].
        predicted: p, [B, K].
        labels: int64 [B].
        compatibility: a, of all samples or of each, [B, 1].
    """
    soft = values.softmax(1)
    held = (labels[:, None] == torch.arange(values.shape[1], device=values.device)).to(soft.dtype)
    return (soft - predicted) / values.shape[1] + compatibility * (soft - held)


@stored("LearnedLabels")
class LearnedLabels:
    """Kept on the client."""

    values: Tensor  # float [n, K], ỹ; a sample's soft label is softmax(ỹ)
    held: Tensor  # int64 [n], the labels from which they started

    @classmethod
    def of(cls, labels: Tensor, classes: int, scale: float, dtype: torch.dtype) -> LearnedLabels:
        """``scale · onehot`` of the labels int64 [n]."""
        return cls(scale * F.one_hot(labels, classes).to(dtype), labels)

    def following(self, labels: Tensor, scale: float) -> LearnedLabels:
        """The same, except for samples whose held label is now another one: these start again from it."""
        start = LearnedLabels.of(labels, self.values.shape[1], scale, self.values.dtype)
        return LearnedLabels(torch.where((labels != self.held)[:, None], start.values, self.values), labels)

    def moved(self, at: Tensor, by: Tensor) -> LearnedLabels:
        """With ``by`` [B, K] added to ỹ at positions ``at`` int64 [B], each at most once."""
        return replace(self, values=self.values.index_copy(0, at, self.values.index_select(0, at) + by))

    def merged(self, predicted: Tensor, scale: float) -> LearnedLabels:
        """``ỹ ← scale · (softmax(ỹ) + p) / 2`` with predictions p [n, K]."""
        return replace(self, values=scale * (self.values.softmax(1) + predicted) / 2)

    @property
    def classes(self) -> Tensor:
        """The class of the largest soft label, int64 [n]."""
        return self.values.argmax(1)
