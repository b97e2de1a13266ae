"""SELFIE's objective: cross-entropy of samples of small loss and of refurbished ones."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Fit
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import BatchRule, LossTerm, Part, Setting
from flnl.core.payload import Payload
from flnl.core.ranges import Count, PositiveCount, Share, StageNumber
from flnl.core.step import Step
from flnl.methods.selfie.history import Empty, History, frequencies, uncertainty
from flnl.numerics.losses import weighted_mean
from flnl.numerics.rounding import TOLERANCE
from flnl.parts.exchanges import own_noise_rate
from flnl.parts.losses.targets import cross_entropy


@dataclass(frozen=True)
class Visit:
    """The term's state during one visit."""

    history: History
    rate: Tensor  # float64 scalar, τ


@dataclass(frozen=True)
class Selfie(LossTerm):
    """The mean cross-entropy of a batch's clean and refurbished samples (Song, Kim and Lee, ICML 2019).

    Clean are the ``⌈(1 - τ) B⌉`` samples of smallest loss. A sample is refurbished from the batch on in which its last
    q predictions have an uncertainty, the entropy of their frequencies over log K, of at most ε; the most frequent one
    is then its label, for good or until it is refurbished again. Of two labels, the refurbished one counts.

    Rounds count from stage ``first_stage`` on; in the first ``warmup`` ones all samples are trained on. A prediction is
    of the step's own pass, and is added after it was used, or (``append=before``) before. ``empty=zero``: slots that
    hold no prediction yet count as predictions of class 0, as in released programs; ``unknown``: only a full history
    refurbishes. A client that was sent its own noise rate uses it instead of τ.
    """

    fits_labels: ClassVar[bool] = True
    noise_rate: Share
    length: PositiveCount
    epsilon: Share
    warmup: Count
    first_stage: StageNumber
    append: Literal["after", "before"]
    empty: Empty

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        """Why there is no prediction of a sample: inputs are mixed."""
        mixing = next((part for part in stage if isinstance(part, BatchRule) and part.overrides("mixing")), None)
        if mixing is None:
            return None
        return f"SELFIE judges single samples, but {type(mixing).__name__} mixes them: choose method/batch=plain"

    def begin(self, network: Model, task: ClientTask, state: History | None) -> Visit:
        like = next(p for p in task.broadcast.params.values() if p.is_floating_point())
        labels, own = onto(task.labels, like.device), own_noise_rate(task)
        history = History.of(labels, self.length) if state is None else replace(state, held=labels)
        rate = like.new_full((), self.noise_rate if own is None else own, dtype=torch.float64)
        return Visit(history, rate)

    def __call__(self, step: Step, state: Visit) -> tuple[Tensor, Visit]:
        """The mean loss, a scalar; 0 where no sample counts."""
        at, logits, history = step.positions, step.logits, state.history
        predicted = logits.detach().argmax(1)
        if self.append == "before":
            history = history.adding(at, predicted)
        if self.acts(step.broadcast.clock.since(self.first_stage)):
            loss, history = self._selected(step, history, state.rate)
        else:
            loss = weighted_mean(
                cross_entropy(logits, _labels(step, history.refurbished.index_select(0, at))), step.weight
            )
        if self.append == "after":
            history = history.adding(at, predicted)
        return loss, replace(state, history=history)

    def acts(self, round: int) -> bool:
        """Whether samples are chosen in this round, counted from the first one with this loss."""
        return round >= self.warmup

    def _selected(self, step: Step, history: History, rate: Tensor) -> tuple[Tensor, History]:
        at, losses = step.positions, cross_entropy(step.logits.detach(), step.labels)
        slots, seen = history.slots.index_select(0, at), history.seen.index_select(0, at)
        shares = frequencies(slots, step.logits.shape[1], self.empty)
        certain = uncertainty(shares) <= self.epsilon
        if self.empty == "unknown":
            certain = certain & (seen >= self.length)
        new = torch.where(certain, shares.argmax(1), history.refurbished.index_select(0, at))
        history = replace(history, refurbished=history.refurbished.index_copy(0, at, new))
        valid = torch.ones_like(certain) if step.weight is None else step.weight > 0
        chosen = ((new >= 0) | clean(losses, valid, rate)).to(losses.dtype)
        counted = chosen if step.weight is None else chosen * step.weight
        return weighted_mean(cross_entropy(step.logits, _labels(step, new)), counted), history

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Visit) -> History:
        return state.history

    def begins(self, lengths: Sequence[int]) -> int:
        return sum(lengths[: self.first_stage - 1]) + self.warmup

    def caution(self, setting: Setting) -> str | None:
        rounds = sum(setting.lengths[self.first_stage - 1 :])
        if self.warmup < rounds:
            return None
        return f"{setting.key}.warmup={self.warmup}: this loss has {rounds} rounds, so it never chooses samples"

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """The samples whose refurbished label is another than they hold."""
        kept: Mapping[int, History] = state
        return tuple(_suspected(client, history) for client, history in kept.items())


def clean(losses: Tensor, valid: Tensor, rate: Tensor) -> Tensor:
    """The ``⌈(1 - τ) m⌉`` samples of smallest loss among the m ``valid`` ones, all [B]; of ties the first ones."""
    count = ((1 - rate) * valid.sum().double() - TOLERANCE).ceil()
    ranks = torch.where(valid, losses, torch.inf).argsort(stable=True).argsort(stable=True)
    return (ranks < count) & valid


def _labels(step: Step, new: Tensor) -> Tensor:
    return torch.where(new >= 0, new, step.labels)


def _suspected(client: int, history: History) -> SuspectedSamples:
    held, new = history.held.cpu(), history.refurbished.cpu()
    return SuspectedSamples(client, (new >= 0) & (new != held), None, held, torch.where(new >= 0, new, held))
