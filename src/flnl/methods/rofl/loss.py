"""RoFL's objective: samples of small loss, whose labels are compared with the nearest centroid of their features."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.errors import UserError
from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import LossTerm, Setting
from flnl.core.ranges import Count, NonNegative, PositiveCount, Share
from flnl.core.step import FEATURES, Step
from flnl.methods.rofl.centroids import GlobalCentroids, class_means, moved, nearest_class
from flnl.numerics.ramp import linear_ramp
from flnl.numerics.small_loss import Schedule, forget_rate, smallest
from flnl.parts.exchanges import own_noise_rate
from flnl.parts.losses.targets import cross_entropy, expected


@dataclass(frozen=True)
class Visit:
    """The term's state during one visit to a client of n samples."""

    centroids: Tensor  # float [C, D]
    predicted: Tensor  # int64 [n], ŷ; the client's labels before round ``T_pl``
    loss: Tensor  # float [n], cross-entropy of each sample's label when it was last in a batch
    doubted: Tensor  # bool [n], whether it was left out then, or its nearest centroid was not that of its label
    forget: Tensor | None = None  # float64 scalar, R(t) at the client's own noise rate; None if it was not sent one


@dataclass(frozen=True)
class RoFL(LossTerm):
    """``mean_{i in I} CE(p_i, t_i) + λ_cen(t) m_i ‖f_i - f^{y_i}‖² + λ_e H(p_i)`` (Yang et al. 2022).

    I are the ``max(1, ⌊(1 - R(t)) B⌋)`` samples of the batch with the smallest cross-entropy of their labels y; R(t)
    rises over ``num_gradual`` rounds to ``forget_rate``, or to the client's own noise rate if it was sent one. f_i are
    the features, f^j the client's centroids; m_i = 1 if the nearest centroid, ``ỹ_i = argmax_j cos(f^j, f_i)``, is that
    of y_i, and 0 otherwise. The target t_i is y_i if m_i = 1; otherwise, from round ``T_pl`` on, it is ŷ_i, the
    prediction of the received model in eval mode.
    λ_cen(t) rises to ``lambda_cen`` over ``T_pl`` rounds. t counts the rounds over all stages.

    After each step the centroids move towards the mean features of I. They start a visit as the server's; a class
    without one starts at the mean feature of the client's samples of the class under the received model.

    ``cen_reduction=sum`` sums the second term over I instead of averaging it; ``detach_features`` keeps it from
    changing the network. After mixing, the cross-entropy is that of mixed targets, y_i is the label of the larger
    share, and ŷ is mixed as labels are. Samples of weight 0 are no candidates.
    """

    reads: ClassVar[tuple[type, ...]] = (GlobalCentroids,)
    fits_labels: ClassVar[bool] = True
    forget_rate: Share
    num_gradual: PositiveCount
    schedule: Schedule
    T_pl: Count
    lambda_cen: NonNegative
    lambda_e: NonNegative
    cen_reduction: Literal["mean", "sum"]
    detach_features: bool

    def begin(self, network: Model, task: ClientTask, state: Any) -> Visit:
        """The received centroids and, from round ``T_pl`` on, ŷ.

        Raises:
            UserError: if the network has no features.
        """
        labels, sent = task.labels, task.broadcast.extras.get(GlobalCentroids)
        if sent is None or bool((~sent.values.any(1))[labels].any()):
            centroids = class_means(_features(network, task), labels, network.num_classes)
            if sent is not None:
                centroids = torch.where(sent.values.any(1)[:, None], sent.values, centroids)
        else:
            centroids = sent.values
        centroids = onto(centroids, network.device, network.dtype)
        predicted = network.received(task).argmax(1) if task.broadcast.round >= self.T_pl else labels
        losses, own = centroids.new_zeros(len(labels)), own_noise_rate(task)
        forget = (
            None if own is None else losses.new_full((), self._forget(task.broadcast.round, own), dtype=torch.float64)
        )
        doubted = torch.zeros_like(losses, dtype=torch.bool)
        return Visit(centroids, onto(predicted, network.device), losses, doubted, forget)

    def __call__(self, step: Step, state: Visit) -> tuple[Tensor, Visit]:
        """The losses [B], scaled so that their mean is the mean over I; the state with this batch."""
        round, features = step.broadcast.round, step.output(FEATURES)
        fitted = cross_entropy(step.logits, step.targets)
        valid = torch.ones_like(fitted, dtype=torch.bool) if step.weight is None else step.weight > 0
        forget = self._forget(round, self.forget_rate) if state.forget is None else state.forget
        kept = smallest(fitted, valid, forget)
        labels = step.targets.argmax(1) if step.targets.is_floating_point() else step.targets
        detached = features.detach().to(state.centroids.dtype)
        agrees = nearest_class(detached, state.centroids) == labels

        losses, logs = fitted, F.log_softmax(step.logits, 1)
        if round >= self.T_pl:
            pseudo = _mixed(state.predicted.index_select(0, step.positions), logs, step)
            losses = torch.where(agrees, losses, expected(-logs, pseudo))
        if (strength := self._strength(round)) > 0:
            away = (detached if self.detach_features else features) - state.centroids.index_select(0, labels)
            pulled = strength * away.square().sum(1) * agrees
            losses = losses + (pulled * kept.sum() if self.cen_reduction == "sum" else pulled)
        if self.lambda_e > 0:
            losses = losses - self.lambda_e * (logs.exp() * logs).sum(1)

        means = class_means(detached, labels, len(state.centroids), kept)
        after = replace(
            state,
            centroids=moved(state.centroids, means),
            loss=state.loss.index_copy(0, step.positions, fitted.detach().to(state.loss.dtype)),
            doubted=state.doubted.index_copy(0, step.positions, valid & ~(kept & agrees)),
        )
        return torch.where(kept, losses * _scale(kept.to(losses.dtype), step.weight), 0.0), after

    def _forget(self, round: int, rate: float) -> float:
        return forget_rate(round, rate, self.num_gradual, 1.0, self.schedule)

    def begins(self, lengths: Sequence[int]) -> int:
        return self.T_pl

    def caution(self, setting: Setting) -> str | None:
        """The correction of labels begins after the last round."""
        rounds = sum(setting.lengths)
        if self.T_pl < rounds:
            return None
        return (
            f"{setting.key}.T_pl={self.T_pl}: the run has {rounds} rounds, so it never corrects labels; raise rounds "
            "or lower this value"
        )

    def _strength(self, round: int) -> float:
        return self.lambda_cen * linear_ramp(round, self.T_pl)


def _features(network: Model, task: ClientTask) -> Tensor:
    try:
        return network.received(task, output=FEATURES)
    except LookupError as error:
        raise UserError(
            f"method/local=[rofl] compares features, but {error}: name the model's last layer head, so that its "
            "inputs are the features"
        ) from error


def _mixed(labels: Tensor, like: Tensor, step: Step) -> Tensor:
    """Labels int64 [B], as targets: mixed as the batch was, float [B, K]; as they are if it was not."""
    if step.mixing is None:
        return labels
    soft = (labels[:, None] == torch.arange(like.shape[1], device=like.device)).to(like.dtype)
    partner = onto(step.mixing.partner, like.device)
    return step.mixing.share * soft + (1 - step.mixing.share) * soft.index_select(0, partner)


def _scale(kept: Tensor, weight: Tensor | None) -> Tensor:
    """``Σ w / Σ_kept w``, a scalar: a mean over the batch times it is one over the kept samples; 0 without any."""
    if weight is None:
        return len(kept) / kept.sum()
    return weight.sum() / (kept * weight).sum().clamp_min(1e-12)
