"""FedGR's objective on strong views: refined labels, the client's teacher, and the received model's features."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from flnl.core.inputs import WORDS
from flnl.core.messages import ClientTask, Fit
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import BatchRule, LossTerm, Part, Setting
from flnl.core.payload import Params
from flnl.core.ranges import NonNegative, Positive, Share, StageNumber
from flnl.core.step import FEATURES, LOGITS, Step
from flnl.methods.fedgr.exchange import WEAK_VIEW, RefinedLabels
from flnl.methods.fedgr.sieve import NO_LABEL
from flnl.methods.fedgr.teacher import AveragedTeacher, Decay
from flnl.numerics.losses import weighted_mean
from flnl.parts.losses.targets import cross_entropy
from flnl.parts.strong_view import StrongDraw, drawn_view, strong_inputs


def divergence(taught: Tensor, values: Tensor, temperature: float) -> Tensor:
    """``KL(softmax(u / τ) ‖ softmax(z / τ))`` [B] of rows u and z [B, d]; not multiplied by τ²."""
    soft, logs = (taught / temperature).log_softmax(1), (values / temperature).log_softmax(1)
    return (soft.exp() * (soft - logs)).sum(1)


def refined_loss(given: Tensor, pseudo: Tensor, right: Tensor, high: bool | Tensor) -> Tensor:
    """``q CE(y) + (1 - q) CE(ŷ)``, or ``CE(ŷ)`` where the client's noise is ``high``; [B].

    Args:
        given: the cross-entropy of the given labels [B].
        pseudo: that of the pseudo-labels [B], 0 for a sample without one.
        right: q, the probability that the given label is right, [B] or one for all.
        high: whether the client learns from pseudo-labels alone.
    """
    high = high if isinstance(high, Tensor) else torch.full_like(given, high, dtype=torch.bool)
    return torch.where(high, pseudo, right * given + (1 - right) * pseudo)


@dataclass(frozen=True)
class Visit:
    """The term's state during one visit."""

    teacher: AveragedTeacher | None  # None: it is never asked
    logits: Tensor | None  # u [n, K]; None: it does not teach yet
    features: Tensor | None  # g [n, d] of the received model; None: not asked
    pixels: tuple[Tensor, Tensor] | None  # mean and deviation [C, 1, 1]: inputs are (pixel - mean) / std; None: plain


@dataclass(frozen=True)
class FedGR(LossTerm):
    """``L + λ_B KL(u ‖ z) + λ_R KL(g ‖ e)`` with logits z and features e of the batch's strong view.

    L is the loss of refined labels. u are the teacher's logits, g the received model's features, each computed once as
    a visit begins, on weak views; both are divided by a temperature, and softmax is taken of them. The teacher is an
    average of the client's models after each step (``decay_local``), which a visit begins by pulling to the received
    model (``decay_global``). It becomes the received model before stage ``first_stage``, in which it begins to teach,
    and where more than ``beta`` of the client's labels are probably wrong and fewer than ``fewest`` of its samples have
    a pseudo-label.

    As in the authors' program: ``posterior=batch`` takes the batch's mean posterior; ``decay=released`` averages with a
    warm-up, twice a step, and pulls twice a visit. ``view=plain`` trains on the batch as it is.
    """

    reads: ClassVar[tuple[type, ...]] = (RefinedLabels,)
    networks: ClassVar[int | None] = 1
    fits_labels: ClassVar[bool] = True
    restarts: ClassVar[bool] = True
    copies: ClassVar[float] = 1
    distillation: NonNegative
    representation: NonNegative
    temperature: Positive
    feature_temperature: Positive
    decay_local: Share
    decay_global: Share
    decay: Decay
    beta: Share
    fewest: Share
    posterior: Literal["sample", "batch"]
    view: Literal["strong", "plain"]
    first_stage: StageNumber

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        """Why labels are not refined: batches are mixed, so that no row is one sample; or samples are no images."""
        if any(isinstance(part, BatchRule) and part.overrides("mixing") for part in stage):
            return "FedGR refines the label of each sample, and mixed batches have none: choose method/batch=plain"
        if setting.kind != "image" and self.view == "strong":
            return f"strong views are of images, not of {WORDS[setting.kind]}: set {setting.key}.view=plain"
        return None

    def begin(self, network: Model, task: ClientTask, state: AveragedTeacher | None) -> Visit:
        """The teacher and its logits, and the received model's features."""
        features = pixels = None
        if self.view == "strong":
            mean, std = (tensor.clone() for tensor in network.normalisation)
            pixels = mean, std
        if self.representation:
            features = network.received(task, task.stream(WEAK_VIEW), output=FEATURES)
            features = onto(features, network.device, network.dtype)
        if not self.distillation:
            return Visit(None, None, features, pixels)
        teacher, logits = self._teacher(network, task, state)
        logits = None if logits is None else onto(logits, network.device, network.dtype)
        return Visit(teacher, logits, features, pixels)

    def _teacher(
        self, network: Model, task: ClientTask, state: AveragedTeacher | None
    ) -> tuple[AveragedTeacher, Tensor | None]:
        received = {name: p for name, p in task.broadcast.params.items() if p.is_floating_point()}
        teaches, visit = task.broadcast.stage >= self.first_stage, task.visit.one(RefinedLabels)
        if state is None or not teaches or (visit.noise > self.beta and visit.labelled < self.fewest):
            device = next(iter(received.values())).device
            updates = torch.zeros((), dtype=torch.int64, device=device) if state is None else state.updates
            teacher = AveragedTeacher({name: p.clone() for name, p in received.items()}, updates)
            return teacher, network.received(task, task.stream(WEAK_VIEW)) if teaches else None
        teacher = state.pulled(received, self.decay_global)
        model = network.at({**task.broadcast.params, **teacher.params})
        logits = model.outputs(task.samples, task.stream(WEAK_VIEW))[LOGITS]
        return teacher.pulled(received, self.decay_global) if self.decay == "released" else teacher, logits

    def draw(self, rng: np.random.Generator, size: int) -> StrongDraw | None:
        return drawn_view(rng, size) if self.view == "strong" else None

    def __call__(self, step: Step, state: Visit) -> tuple[Tensor, Visit]:
        outputs = self._outputs(step, state)
        logits, at = outputs[LOGITS], step.positions
        loss = self._refined(step, logits)
        if self.distillation and state.logits is not None:
            taught = state.logits[at].to(logits.dtype)
            loss = loss + self.distillation * divergence(taught, logits, self.temperature)
        if state.features is not None:
            features = outputs[FEATURES]
            held = divergence(state.features[at].to(features.dtype), features, self.feature_temperature)
            loss = loss + self.representation * held
        return loss, state

    def stepped(self, params: Params, state: Visit) -> Visit:
        """The teacher, averaged with the model after the step."""
        if state.teacher is None:
            return state
        return replace(state, teacher=state.teacher.following(params, self.decay_local, self.decay))

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Visit) -> AveragedTeacher | None:
        return state.teacher

    def _outputs(self, step: Step, state: Visit) -> Mapping[str, Tensor]:
        if self.view == "plain" or state.pixels is None:
            return step.outputs
        return step.passes.outputs(strong_inputs(step.inputs, step.draw, state.pixels))

    def _refined(self, step: Step, logits: Tensor) -> Tensor:
        visit, at = step.visit.one(RefinedLabels), step.positions
        right, labels = visit.right.to(logits.dtype)[at], visit.labels[at]
        has = labels != NO_LABEL
        pseudo = torch.where(has, cross_entropy(logits, torch.where(has, labels, 0)), 0.0)
        q = weighted_mean(right, step.weight) if self.posterior == "batch" else right
        return refined_loss(cross_entropy(logits, step.labels), pseudo, q, visit.high)
