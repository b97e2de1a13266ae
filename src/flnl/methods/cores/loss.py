"""CORES²'s objective: cross-entropy less its expectation over all labels, and a sieve."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientTask, Fit
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import LossTerm, Setting
from flnl.core.payload import Payload
from flnl.core.ranges import Count, NonNegative, PositiveCount, StageNumber
from flnl.core.step import Step
from flnl.core.stored import stored
from flnl.numerics.losses import weighted_mean
from flnl.numerics.ramp import ramped
from flnl.parts.losses.peer import cores_loss
from flnl.parts.losses.targets import cross_entropy

FLOOR = 1e-8
"""Added to probabilities in the subtracted term, which has no lower bound otherwise (the authors' program)."""


@stored("SievedSamples")
class Sieved:
    """What the term keeps of a client."""

    left_out: Tensor  # bool [n], whether the sample was left out when it was last seen
    held: Tensor  # int64 [n], the label that it had then
    prior: Tensor  # [K], the distribution of labels that the expectation is over


@dataclass(frozen=True)
class Cores(LossTerm):
    """``ℓ(f(x), ỹ) - β Σ_c q_c ℓ(f(x), c)``, a mean over samples that pass the sieve (Cheng et al. 2021).

    Rounds count from stage ``first_stage`` on. β is 0 for the first ``ramp_start`` rounds and rises over
    ``ramp_length`` rounds. From round ``sieve_from`` on, a sample counts where ``ℓ(f(x), ỹ) ≤ mean_c ℓ(f(x), c)``; the
    mean is uniform, whatever q is. q is the distribution of the client's labels, of those that passed the sieve when
    they were last seen, or uniform (``prior``). ``rescaled`` divides the loss by 1 + β, as the authors' program does
    the learning rate.
    """

    fits_labels: ClassVar[bool] = True

    beta: NonNegative
    ramp_start: Count
    ramp_length: PositiveCount
    sieve_from: Count
    first_stage: StageNumber
    prior: Literal["own", "uniform"]
    rescaled: bool

    def begin(self, network: Model, task: ClientTask, state: Sieved | None) -> Sieved:
        """The client's labels, less those that were left out."""
        like = next(p for p in task.broadcast.params.values() if p.is_floating_point())
        labels = task.labels.cpu()
        left_out = torch.zeros(len(task.samples), dtype=torch.bool)
        if state is not None:
            left_out = state.left_out.cpu() & (state.held.cpu() == labels)
        counts = torch.bincount(labels[~left_out], minlength=network.num_classes).double()
        if self.prior == "uniform" or not counts.sum():
            counts = torch.ones(network.num_classes, dtype=torch.float64)
        return Sieved(
            onto(left_out, like.device),
            onto(labels, like.device),
            onto(counts / counts.sum(), like),
        )

    def __call__(self, step: Step, state: Sieved) -> tuple[Tensor, Sieved]:
        """The mean loss of the samples that count, a scalar; 0 where none does."""
        round = step.broadcast.clock.since(self.first_stage)
        beta = ramped(self.beta, round, start=self.ramp_start, length=self.ramp_length)
        if beta:
            losses = cores_loss(step.logits, step.targets, state.prior, beta=beta, prob_floor=FLOOR)
        else:
            losses = cross_entropy(step.logits, step.targets)
        if self.rescaled:
            losses = losses / (1 + beta)
        if round < self.sieve_from:
            return weighted_mean(losses, step.weight), state
        passed = plausible(step.logits.detach(), step.targets)
        counted = passed.to(losses) if step.weight is None else passed * step.weight
        left_out = state.left_out.index_copy(0, step.positions, ~passed)
        return weighted_mean(losses, counted), replace(state, left_out=left_out)

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Sieved) -> Sieved:
        return state

    def begins(self, lengths: Sequence[int]) -> int:
        return sum(lengths[: self.first_stage - 1]) + self.sieve_from

    def caution(self, setting: Setting) -> str | None:
        rounds = sum(setting.lengths[self.first_stage - 1 :])
        if self.sieve_from < rounds:
            return None
        return f"{setting.key}.sieve_from={self.sieve_from}: this loss has {rounds} rounds, so the sieve never begins"

    def findings(self, state: Any, clients: Any, known: Payload) -> tuple[Finding, ...]:
        """The samples that were left out when they were last seen."""
        return tuple(
            SuspectedSamples(client, kept.left_out.cpu()) for client, kept in state.items() if bool(kept.left_out.any())
        )


def plausible(logits: Tensor, targets: Tensor) -> Tensor:
    """Whether a label's loss is at most the mean of all labels' [B]: ``ℓ(f(x), ỹ) ≤ mean_c ℓ(f(x), c)``."""
    return cross_entropy(logits, targets) <= -F.log_softmax(logits, 1).mean(1)
