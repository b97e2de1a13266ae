"""A sample's last predictions, and how uncertain the network is by them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from flnl.core.stored import stored

Empty = Literal["unknown", "zero"]
"""What a slot without a prediction is: none, or a prediction of class 0, as in released programs."""


@stored("PredictionHistory")
class History:
    """What the term keeps of a client's n samples."""

    slots: Tensor  # int16 [n, q], the last predictions in no order; -1 where there is none
    seen: Tensor  # int64 [n], number of predictions so far
    refurbished: Tensor  # int64 [n], the label that the sample got; -1 for none
    held: Tensor  # int64 [n], the label that it had when it was last seen

    @classmethod
    def of(cls, labels: Tensor, length: int) -> History:
        """Of samples without a prediction."""
        none = torch.full_like(labels, -1)
        slots = torch.full((len(labels), length), -1, dtype=torch.int16, device=labels.device)
        return cls(slots, torch.zeros_like(labels), none, labels)

    def adding(self, at: Tensor, classes: Tensor) -> History:
        """With one more prediction, int64 [B], of the samples at positions ``at`` int64 [B]; the oldest one goes."""
        seen, slots = self.seen.index_select(0, at), self.slots.index_select(0, at)
        place = torch.arange(slots.shape[1], device=slots.device) == (seen % slots.shape[1])[:, None]
        slots = torch.where(place, classes[:, None].to(slots.dtype), slots)
        return replace(self, slots=self.slots.index_copy(0, at, slots), seen=self.seen.index_copy(0, at, seen + 1))


def frequencies(slots: Tensor, classes: int, empty: Empty) -> Tensor:
    """How often each class was predicted, as shares of the predictions: float64 [B, K], from slots [B, q].

    All 0 for a sample without a prediction under ``empty=unknown``.
    """
    if empty == "zero":
        slots = slots.clamp_min(0)
    counts = (slots[:, :, None] == torch.arange(classes, device=slots.device)).sum(1).double()
    return counts / counts.sum(1, keepdim=True).clamp_min(1)


def uncertainty(shares: Tensor) -> Tensor:
    """The entropy of shares [B, K], divided by that of equal shares; [B], in [0, 1]."""
    logs = shares.clamp_min(torch.finfo(shares.dtype).tiny).log()
    return -(shares * logs).sum(1) / math.log(shares.shape[1])
