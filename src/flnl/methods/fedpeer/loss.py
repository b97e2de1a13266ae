"""FedPeer's objective: the loss of a label less that of a peer label drawn from the distribution of all labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from flnl.core.onto import onto
from flnl.core.parts import LossTerm, Setting
from flnl.core.ranges import Count, NonNegative, PositiveCount, Share, StageNumber
from flnl.core.step import Step
from flnl.methods.fedpeer.exchange import LabelDistribution, OwnDistribution
from flnl.numerics.ramp import ramped
from flnl.parts.losses.peer import FloorTerms, cores_loss, peer_loss
from flnl.parts.losses.targets import cross_entropy


def peer_labels(distribution: Tensor, uniforms: Tensor) -> Tensor:
    """Labels int64 [B] drawn from ``distribution`` [K]: the first class whose cumulative share is above u.

    ``uniforms`` [B] are in [0, 1). A class of share 0 is never drawn.
    """
    classes = torch.arange(len(distribution), device=distribution.device)
    # float cumsum has no deterministic form on CUDA
    cumulative = torch.where(classes <= classes[:, None], distribution.double(), 0.0).sum(1)
    return (uniforms.double()[:, None] >= cumulative / cumulative[-1]).sum(1)


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
        beta = self._beta(step.broadcast.clock.since(self.first_stage))
        if beta == 0:
            return cross_entropy(step.logits, step.targets), state
        kept = step.kept.get(OwnDistribution)
        q = onto((step.broadcast.extras.one(LabelDistribution) if kept is None else kept).shares, step.logits.device)
        floor, terms = self.prob_floor, self.floor_terms
        if self.peer == "sample":
            peers = peer_labels(q, onto(step.draw, q.device))
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
