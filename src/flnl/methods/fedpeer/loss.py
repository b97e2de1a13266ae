"""Peer losses: the loss of a label minus the loss of a peer label drawn from the distribution of all labels.

With cross-entropy and β = 1 the log-sum-exp cancels: the loss is z_peer - z_label, linear in the logits and unbounded
below. With a floor under the subtracted probability, the gradient vanishes beyond a gap of ``-log(floor)`` between the
logits, 11.5 for 1e-5.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.parts import LossTerm, Setting
from flnl.core.ranges import Count, NonNegative, PositiveCount, Share, StageNumber
from flnl.core.step import Step
from flnl.methods.fedpeer.exchange import LabelDistribution, OwnDistribution
from flnl.parts.losses.targets import cross_entropy, expected, of_labels

FloorTerms = Literal["subtracted", "both"]


def peer_labels(distribution: Tensor, uniforms: Tensor) -> Tensor:
    """Labels int64 [B] drawn from ``distribution`` [K]: the first class whose cumulative share is above u.

    ``uniforms`` [B] are in [0, 1). A class of share 0 is never drawn.
    """
    classes = torch.arange(len(distribution), device=distribution.device)
    # float cumsum has no deterministic form on CUDA
    cumulative = torch.where(classes <= classes[:, None], distribution.double(), 0.0).sum(1)
    return (uniforms.double()[:, None] >= cumulative / cumulative[-1]).sum(1)


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


def ramped(beta: NonNegative, step: Count, *, start: Count = 10, length: PositiveCount = 30) -> float:
    """The ramp of β: 0 before ``start``, linear from 0 to β over ``length`` steps, then β (CORES).

    >>> [round(ramped(2.0, epoch), 3) for epoch in (0, 10, 11, 39, 99)]
    [0.0, 0.0, 0.069, 2.0, 2.0]
    """
    if length == 1:
        return beta * (step >= start)
    return beta * min(1.0, max(0.0, (step - start) / (length - 1)))


@dataclass(frozen=True)
class Peer(LossTerm):
    """``ℓ(f(x), ỹ) - β ℓ(f(x), y')`` per sample, the whole objective of FedPeer (Eq. 4, Algorithm 2).

    ``peer=sample`` draws y' from the distribution q of labels for every sample and step; ``cores`` takes the
    expectation over q (Eq. 5). β = 0 is cross-entropy. ``ramp`` increases β over rounds as CORES does over epochs: 0
    for the first ``ramp_start`` rounds from stage ``first_stage`` on, then linear over ``ramp_length`` rounds.
    """

    reads: ClassVar[tuple[type, ...]] = (LabelDistribution,)
    fits_labels: ClassVar[bool] = True
    peer: Literal["sample", "cores"]
    beta: NonNegative
    prob_floor: Share
    floor_terms: FloorTerms
    ramp: bool
    ramp_start: Count
    ramp_length: PositiveCount
    first_stage: StageNumber

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        """Uniform numbers in [0, 1), [B]; None unless ``peer=sample``."""
        return torch.from_numpy(rng.random(size)) if self.peer == "sample" else None

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """The loss [B]."""
        beta = self._beta(step.broadcast.clock.since(self.first_stage))
        if beta == 0:
            return cross_entropy(step.logits, step.targets), state
        kept = step.kept.get(OwnDistribution)
        q = (step.broadcast.extras.one(LabelDistribution) if kept is None else kept).shares.to(
            step.logits.device, non_blocking=True
        )
        floor, terms = self.prob_floor, self.floor_terms
        if self.peer == "sample":
            peers = peer_labels(q, step.draw.to(q.device, non_blocking=True))
            return peer_loss(step.logits, step.targets, peers, beta=beta, prob_floor=floor, floor_terms=terms), state
        return cores_loss(step.logits, step.targets, q, beta=beta, prob_floor=floor, floor_terms=terms), state

    def begins(self, lengths: Sequence[int]) -> int:
        """The round at whose end peers begin to count: β's ramp rises from there."""
        return sum(lengths[: self.first_stage - 1]) + (self.ramp_start if self.ramp and self.beta else 0)

    def caution(self, setting: Setting) -> str | None:
        """The ramp of β begins after the last round, so that peers never count."""
        rounds = sum(setting.lengths[self.first_stage - 1 :])
        if self.beta == 0 or any(self._beta(round) for round in range(rounds)):
            return None
        return (
            f"method/local=[fedpeer] never acts: β rises after {self.ramp_start} rounds (ramp_start), and the run has "
            f"{rounds}; raise rounds or lower ramp_start"
        )

    def _beta(self, round: int) -> float:
        if not self.ramp:
            return self.beta
        return ramped(self.beta, max(0, round), start=self.ramp_start, length=self.ramp_length)
