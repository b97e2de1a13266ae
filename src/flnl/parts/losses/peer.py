"""Peer losses: the loss of a label less that of a label drawn from a distribution, or its expectation.

With cross-entropy and β = 1 the log-sum-exp cancels: the loss is z_peer - z_label, linear in the logits and unbounded
below. With a floor under the subtracted probability, the gradient vanishes beyond a gap of ``-log(floor)`` between the
logits, 11.5 for 1e-5.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.ranges import NonNegative, Share
from flnl.parts.losses.targets import cross_entropy, expected, of_labels

FloorTerms = Literal["subtracted", "both"]


def peer_loss(
    logits: Tensor,
    labels: Tensor,
    peers: Tensor,
    *,
    beta: NonNegative = 1.0,
    prob_floor: Share = 1e-5,
    floor_terms: FloorTerms = "subtracted",
) -> Tensor:
    """``ℓ(f(x), ỹ) - β ℓ(f(x), y')`` [B], with ℓ the cross-entropy (FedPeer, Eq. 4; β as in its proofs).

    Logits are [B, K], labels ỹ and peer labels y' int64 [B]; ỹ may be soft, [B, K]. ``prob_floor`` replaces -log p by
    -log(p + floor), in the subtracted term or in ``both``; 0 gives the paper's loss.
    """
    fitted = _cross_entropy(logits, labels, prob_floor if floor_terms == "both" else 0.0)
    return fitted - beta * of_labels(_losses(logits, prob_floor), peers)


def cores_loss(
    logits: Tensor,
    labels: Tensor,
    distribution: Tensor,
    *,
    beta: NonNegative = 1.0,
    prob_floor: Share = 1e-5,
    floor_terms: FloorTerms = "subtracted",
) -> Tensor:
    """``ℓ(f(x), ỹ) - β Σ_c q_c ℓ(f(x), c)`` [B]: the expectation of the peer loss (FedPeer, Eq. 5; Cheng et al. 2021).

    ``distribution`` is q [K]; the rest is as in ``peer_loss``.
    """
    fitted = _cross_entropy(logits, labels, prob_floor if floor_terms == "both" else 0.0)
    return fitted - beta * (_losses(logits, prob_floor) * distribution.to(logits.dtype)).sum(1)


def _cross_entropy(logits: Tensor, labels: Tensor, floor: float) -> Tensor:
    if floor == 0:
        return cross_entropy(logits, labels)  # bit-identical to FedAvg's loss
    losses = _losses(logits, floor)
    return expected(losses, labels)


def _losses(logits: Tensor, floor: float) -> Tensor:
    """``-log(p + floor)`` [B, K]."""
    logs = F.log_softmax(logits, dim=1)
    return -logs if floor == 0 else -torch.logaddexp(logs, torch.full_like(logs, math.log(floor)))
