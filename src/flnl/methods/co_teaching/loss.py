"""Co-teaching's objective for two networks, and that of Co-teaching+."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.parts import LossTerm, Setting
from flnl.core.ranges import Count, Positive, PositiveCount, Share
from flnl.core.step import FIRST, SECOND, Step
from flnl.numerics.losses import weighted_mean
from flnl.numerics.small_loss import Schedule, forget_rate, smallest
from flnl.parts.exchanges import own_noise_rate
from flnl.parts.losses.targets import cross_entropy


class Taught(NamedTuple):
    """The selection of one batch; all are bool [B]."""

    candidates: Tensor  # samples among which the networks choose
    by_first: Tensor  # those that the first network chooses, and the second learns
    by_second: Tensor  # those that the second network chooses, and the first learns


def selection(first: Tensor, second: Tensor, candidates: Tensor, forget: float | Tensor) -> Taught:
    """Each network's ``max(1, ⌊(1 - f) |candidates|⌋)`` samples of smallest loss among ``candidates`` bool [B].

    Losses are [B]; those of equal loss are chosen in the order of the batch. Without candidates, nothing is chosen.
    """
    return Taught(candidates, *(smallest(losses, candidates, forget) for losses in (first, second)))


def disagreement(first: Tensor, second: Tensor) -> Tensor:
    """Whether the networks predict different classes, bool [B], from their logits [B, K]."""
    return first.argmax(1) != second.argmax(1)


@dataclass(frozen=True)
class Visit:
    """The term's state during one visit: what both networks made of the client's n samples when they last saw them."""

    loss: Tensor  # [n], mean of both networks' losses
    left_out: Tensor  # bool [n], whether the sample was a candidate that neither network chose
    differing: Tensor  # scalar, number of predictions in which the networks differed, over all steps
    predictions: Tensor  # scalar, number of all of them
    forget: Tensor | None = None  # float64 scalar, f(t) at the client's own noise rate; None if it was not sent one


@dataclass(frozen=True)
class CoTeaching(LossTerm):
    """``mean_{i in I²} ℓ¹_i + mean_{i in I¹} ℓ²_i`` (Han et al. 2018, Algorithm 1).

    ℓ¹ and ℓ² [B] are the cross-entropies of the two networks, I¹ and I² the ``max(1, ⌊(1 - f(t)) B⌋)`` samples of the
    batch with the smallest ℓ¹ and ℓ²: each network learns what the other finds easy. f(t) rises to ``forget_rate``
    over ``num_gradual`` rounds; t counts the rounds over all stages, from 0, or from 1 with ``schedule=released``, as
    that program numbers its epochs. A client that was sent its own noise rate uses it instead of ``forget_rate``.

    From round ``disagree_from`` (from 0) on it is Co-teaching+ (Yu et al. 2019): the networks choose among the samples
    on which their predictions differ, D instead of the batch. If there are none, each network learns the whole
    batch. null: plain Co-teaching in all rounds.

    After mixing, ℓ is the cross-entropy of the mixed targets. Samples of weight 0 are no candidates.
    """

    fits_labels: ClassVar[bool] = True
    networks: ClassVar[int | None] = 2
    forget_rate: Share
    num_gradual: PositiveCount
    exponent: Positive
    schedule: Schedule
    disagree_from: Count | None

    def begin(self, network: Model, task: ClientTask, state: Any) -> Visit:
        like = next(p for p in task.broadcast.params.values() if p.is_floating_point())
        losses, own = like.new_zeros(len(task.samples)), own_noise_rate(task)
        forget = (
            None if own is None else losses.new_full((), self._forget(task.broadcast.round, own), dtype=torch.float64)
        )
        return Visit(losses, torch.zeros_like(losses, dtype=torch.bool), like.new_zeros(()), like.new_zeros(()), forget)

    def __call__(self, step: Step, state: Visit) -> tuple[Tensor, Visit]:
        """The sum of both networks' losses, a scalar; the state with this batch."""
        logits = step.output(FIRST), step.output(SECOND)
        first, second = (cross_entropy(z, step.targets) for z in logits)
        differ = disagreement(*logits)
        forget = self._forget(step.broadcast.round, self.forget_rate) if state.forget is None else state.forget
        taught = self._taught(step, first, second, differ, forget)
        loss = _mean(first, taught.by_second, step.weight) + _mean(second, taught.by_first, step.weight)
        return loss, _seen(state, step.positions, (first + second).detach() / 2, taught, differ)

    def begins(self, lengths: Sequence[int]) -> int:
        """The first round in which networks choose by disagreement, if they do."""
        return self.disagree_from or 0

    def caution(self, setting: Setting) -> str | None:
        """Disagreement begins after the last round, so that all rounds are plain Co-teaching."""
        rounds = sum(setting.lengths)
        if self.disagree_from is None or self.disagree_from < rounds:
            return None
        return (
            f"{setting.key}.disagree_from={self.disagree_from}: the run has {rounds} rounds, so it never selects by "
            "disagreement; raise rounds or lower this value"
        )

    def _forget(self, round: int, rate: float) -> float:
        epoch = round + 1 if self.schedule == "released" else round
        return forget_rate(epoch, rate, self.num_gradual, self.exponent, self.schedule)

    def _taught(self, step: Step, first: Tensor, second: Tensor, differ: Tensor, forget: float | Tensor) -> Taught:
        round = step.broadcast.round
        valid = torch.ones_like(differ) if step.weight is None else step.weight > 0
        if self.disagree_from is None or round < self.disagree_from:
            return selection(first, second, valid, forget)
        among = differ & valid
        agreed = ~among.any()
        return selection(first, second, torch.where(agreed, valid, among), forget * (~agreed).double())


def _mean(losses: Tensor, chosen: Tensor, weight: Tensor | None) -> Tensor:
    return weighted_mean(losses, chosen.to(losses.dtype) if weight is None else chosen * weight)


def _seen(visit: Visit, at: Tensor, losses: Tensor, taught: Taught, differ: Tensor) -> Visit:
    left_out = taught.candidates & ~taught.by_first & ~taught.by_second
    return Visit(
        visit.loss.index_copy(0, at, losses.to(visit.loss.dtype)),
        visit.left_out.index_copy(0, at, left_out),
        visit.differing + differ.sum(),
        visit.predictions + len(differ),
        visit.forget,
    )
