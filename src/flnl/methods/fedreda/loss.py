"""FedReDA's objective: labels that are trusted, and the leave-one-out teacher for the rest."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Fit
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import LossTerm, Setting
from flnl.core.payload import Payload
from flnl.core.ranges import PositiveCount
from flnl.core.step import Step
from flnl.methods.fedreda.exchange import Teacher
from flnl.methods.fedreda.trust import (
    KEPT_LOSS,
    TRUSTED,
    SampleTrust,
    agreeing,
    log_prior,
    trusted_loss,
    updated,
    verdicts,
)
from flnl.parts.losses.targets import cross_entropy


@dataclass(frozen=True)
class Visit:
    """The term's state during one visit."""

    prior: Tensor  # [K], added to logits
    teacher: Tensor | None  # [n, K], its logits; None without a teacher
    trusted: Tensor  # bool [n], by the probability with which the visit began
    trust: SampleTrust
    losses: Tensor  # [n], averages of this and earlier visits with a teacher
    clean: Tensor  # int64 scalar, rows that were trusted
    seen: Tensor  # int64 scalar, rows in all

    @property
    def share(self) -> float:
        """The share of rows that were trusted; 0 without any."""
        return float(self.clean) / max(1, int(self.seen))


@dataclass(frozen=True)
class FedReDA(LossTerm):
    """Smoothed cross-entropy of trusted samples, and divergence from the teacher for the others.

    Half of the logarithm of the classes' shares among the client's labels is added to all logits. A sample is trusted
    if student and teacher agree, both with a probability of 0.7 or more, or if its label is right with a probability of
    0.6 or more. That follows the sample's losses: after every ``every``-th round of the stage (from its first), those
    of a class are split in two. Without a teacher, it is cross-entropy, and no loss counts. Use it with ``fedprox``.
    """

    reads: ClassVar[tuple[type, ...]] = (Teacher,)
    fits_labels: ClassVar[bool] = True
    networks: ClassVar[int | None] = 1
    every: PositiveCount

    def caution(self, setting: Setting) -> str | None:
        """Warns that whole networks are trained, on images, or that there is one client."""
        if setting.kind == "image":
            return (
                "FedReDA is meant for an adapter on a frozen backbone's features: with dataset=features the network "
                "is that adapter; on images all of it is trained, which is not FedReDA"
            )
        return None if len(setting.sizes) > 1 else "FedReDA has no teacher, which is the mean of other clients"

    def begin(self, network: Model, task: ClientTask, state: SampleTrust | None) -> Visit:
        """The teacher's logits of all samples, in eval mode and without augmentation."""
        trust, teacher = SampleTrust.of(task.labels) if state is None else state, task.broadcast.extras.get(Teacher)
        where = network.device
        logits = None if teacher is None else onto(network.at(teacher.params).outputs(task.samples)["logits"], where)
        zero = torch.zeros((), dtype=torch.int64, device=where)
        prior = onto(log_prior(task.labels, network.num_classes), where, network.dtype)
        trusted = onto(trust.clean >= TRUSTED, where)
        return Visit(prior, logits, trusted, trust, onto(trust.losses, where, network.dtype), zero, zero)

    def __call__(self, step: Step, state: Visit) -> tuple[Tensor, Visit]:
        student, at = step.logits + state.prior, step.positions
        if state.teacher is None:
            return cross_entropy(student, step.targets), state
        own = cross_entropy(student.detach(), step.labels)
        before = state.losses[at]
        mean = torch.where(before.isnan(), own, KEPT_LOSS * before + (1 - KEPT_LOSS) * own)
        teacher = state.teacher[at].to(student.dtype) + state.prior
        clean = agreeing(student.detach(), teacher) | state.trusted[at]
        losses = state.losses.index_copy(0, at, mean)
        counted = replace(state, losses=losses, clean=state.clean + clean.sum(), seen=state.seen + len(clean))
        return trusted_loss(student, teacher, step.labels, clean), counted

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Visit) -> SampleTrust:
        """The losses, and after the rounds in which they are split how probably labels are right."""
        losses, clean = state.losses.cpu(), state.trust.clean.cpu()
        if state.teacher is not None and task.broadcast.clock.stage_round % self.every == 0:
            clean = updated(clean, verdicts(losses, task.labels))
        return SampleTrust(clean, losses, task.labels)

    def findings(
        self, state: Mapping[int, SampleTrust], clients: Mapping[int, ClientState], known: Payload
    ) -> tuple[Finding, ...]:
        """The samples that are not trusted by their losses."""
        return tuple(
            SuspectedSamples(client, own.clean < TRUSTED, 1 - own.clean, own.judged) for client, own in state.items()
        )
