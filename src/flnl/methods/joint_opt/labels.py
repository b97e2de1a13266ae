"""Soft labels of a client's n samples, and the predictions of which they become the mean."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.stored import stored

Incomplete = Literal["wait", "average"]


@stored("SoftLabels")
class SoftLabels:
    """Kept on the client. A sample's last W predictions are its history, one from each epoch in which it was seen."""

    values: Tensor  # float [n, K], the soft labels; rows sum to 1
    history: Tensor  # float [n, W, K], a ring of predictions; zero where there is none yet
    seen: Tensor  # int64 [n], number of predictions that have entered the history
    held: Tensor  # int64 [n], the labels from which the soft labels started

    @classmethod
    def of(cls, labels: Tensor, classes: int, window: int, dtype: torch.dtype) -> SoftLabels:
        """The labels int64 [n] as they are, without any history."""
        values = F.one_hot(labels, classes).to(dtype)
        history = values.new_zeros(len(labels), window, classes)
        return cls(values, history, torch.zeros_like(labels), labels)

    def following(self, labels: Tensor) -> SoftLabels:
        """The same, except for samples whose held label is now another one: these start again from it."""
        changed = labels != self.held
        start = SoftLabels.of(labels, self.values.shape[1], self.history.shape[1], self.values.dtype)
        return SoftLabels(
            torch.where(changed[:, None], start.values, self.values),
            torch.where(changed[:, None, None], start.history, self.history),
            torch.where(changed, start.seen, self.seen),
            labels,
        )

    def recorded(self, at: Tensor, predictions: Tensor) -> SoftLabels:
        """With ``predictions`` [B, K] of the samples at positions ``at`` int64 [B], each at most once."""
        window = self.history.shape[1]
        seen = self.seen[at]
        ring = self.history.flatten(0, 1).index_copy(0, at * window + seen % window, predictions)
        return replace(self, history=ring.view_as(self.history), seen=self.seen.index_copy(0, at, seen + 1))

    def updated(self, at: Tensor, incomplete: Incomplete) -> SoftLabels:
        """With the soft labels at ``at`` set to the mean of their histories.

        With fewer than W predictions: ``wait`` leaves the label as it is, ``average`` takes the mean of those.
        """
        window, seen = self.history.shape[1], self.seen[at]
        count = seen.clamp(max=window)
        mean = self.history[at].sum(1) / count.clamp(min=1)[:, None]
        ready = count >= (window if incomplete == "wait" else 1)
        values = torch.where(ready[:, None], mean, self.values[at])
        return replace(self, values=self.values.index_copy(0, at, values))

    @property
    def classes(self) -> Tensor:
        """The class of the largest soft label, int64 [n]."""
        return self.values.argmax(1)
