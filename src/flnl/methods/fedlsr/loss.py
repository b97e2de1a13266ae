"""FedLSR's objective: cross-entropy of a mixture of two views, and their divergence."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.core.errors import UserError
from flnl.core.inputs import WORDS
from flnl.core.messages import ClientTask, Samples
from flnl.core.model import Model
from flnl.core.parts import LossTerm, Part, Setting
from flnl.core.ranges import NonNegative, Positive, Share
from flnl.core.step import LOGITS, Step
from flnl.methods.fedlsr.view import Kind, Pixels, ViewDraw, drawn_view, view
from flnl.numerics.ramp import linear_ramp
from flnl.parts.losses.targets import expected

SMALLEST = 1e-6
"""Lower bound of the sharpened probabilities whose divergence is taken (their code)."""


def sharpened_mixture(one: Tensor, other: Tensor, share: float | Tensor, sharpening: float) -> Tensor:
    """``log p_s`` [B, K] with ``p_s ∝ p^s`` and ``p = λ softmax(o_1) + (1 - λ) softmax(o_2)``, from logits [B, K]."""
    weight = one.new_zeros(()) + share
    mixed = torch.logaddexp(F.log_softmax(one, 1) + weight.log(), F.log_softmax(other, 1) + (1 - weight).log())
    return F.log_softmax(sharpening * mixed, 1)


def divergence(one: Tensor, other: Tensor, sharpening: float) -> Tensor:
    """Jensen-Shannon divergence [B] of ``softmax(s o_1)`` and ``softmax(s o_2)``, from logits [B, K]."""
    p, q = (F.softmax(sharpening * logits, 1).clamp_min(SMALLEST) for logits in (one, other))
    middle = ((p + q) / 2).log()
    return ((p * (p.log() - middle)).sum(1) + (q * (q.log() - middle)).sum(1)) / 2


def entropy(logits: Tensor) -> Tensor:
    """Entropy [B] of ``softmax(logits)``, from logits [B, K]."""
    logs = F.log_softmax(logits, 1)
    return -(logs.exp() * logs).sum(1)


@dataclass(frozen=True)
class FedLSRDraw:
    """The random draw of one batch."""

    share: float  # λ ~ Beta(1, 1), the weight of the first view
    view: ViewDraw


@dataclass(frozen=True)
class FedLSR(LossTerm):
    """``-log p_s(y) + γ_t JS(q_1, q_2)`` per sample; FedLSR+ adds ``λ_e (H(p_1) + H(p_2)) / 2`` (Jiang et al. 2022).

    p_v is ``softmax(o_v)``; o_1 are the logits of the batch, o_2 those of its second view. ``p_s ∝ p^(1/T)`` with
    ``p = λ softmax(o_1) + (1 - λ) softmax(o_2)`` and λ ~ Beta(1, 1); ``q_v = softmax(o_v / T_d)``. γ_t rises linearly
    to γ over the ``warmup`` share of all rounds.

    ``variant=official_code``: the cross-entropy takes p_s for logits, so softmax is applied twice; JS is divided by the
    number of classes; the entropy is that of ``softmax(q_1)``, of the first view alone.
    """

    fits_labels: ClassVar[bool] = True
    variant: Literal["paper", "official_code"]
    plus: bool
    gamma: NonNegative
    warmup: Share
    lambda_e: NonNegative
    sharpening: Positive  # 1 / T
    sharpening_js: Positive  # 1 / T_d
    view: Kind
    degrees: Positive

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        """Why there is no second view: samples are no images."""
        if setting.kind == "image":
            return None
        return f"FedLSR rotates or mirrors images, and the data set has {WORDS[setting.kind]}: use another method"

    def begin(self, network: Model, task: ClientTask, state: Any) -> Pixels | None:
        """How inputs are made of pixels, if their colours change; else None.

        Raises:
            UserError: if the inputs are no images: a side of one pixel; or have no colours to change, or pixels outside
                of [0, 1].
        """
        channels, height, width = task.samples.images.shape
        if min(height, width) < 2:
            raise UserError(
                f"FedLSR rotates or mirrors images, but this dataset has {channels}x{height}x{width} "
                "(channels x height x width): use a data set of images, or another method"
            )
        if self.view != "colour":
            return None
        if channels != 3:
            raise UserError(
                f"method.view=colour changes the colours of images, but this dataset has {channels}x{height}x{width} "
                "(channels x height x width): use method.view=rotation or mirror"
            )
        _check_range(task.samples)
        return Pixels(*(t.clone() for t in network.normalisation))

    def draw(self, rng: np.random.Generator, size: int) -> FedLSRDraw:
        return FedLSRDraw(float(rng.beta(1, 1)), drawn_view(rng, size, self.view, self.degrees))

    def __call__(self, step: Step, state: Pixels | None) -> tuple[Tensor, Any]:
        one, other = step.logits, step.output(LOGITS, view(step.inputs, step.draw.view, state))
        gamma = self.gamma * linear_ramp(step.broadcast.round, self.warmup * sum(step.broadcast.lengths))
        return self.loss(one, other, step.targets, step.draw.share, gamma), state

    def loss(self, one: Tensor, other: Tensor, targets: Tensor, share: float | Tensor, gamma: float) -> Tensor:
        """The loss [B], from the logits of both views [B, K], targets, λ and γ_t."""
        logs = sharpened_mixture(one, other, share, self.sharpening)
        js = divergence(one, other, self.sharpening_js)
        if self.variant == "paper":
            fitted, doubt = expected(-logs, targets), (entropy(one) + entropy(other)) / 2
        else:
            fitted, js = expected(-F.log_softmax(logs.exp(), 1), targets), js / one.shape[1]
            doubt = entropy(F.softmax(self.sharpening_js * one, 1))
        total = fitted + gamma * js
        return total + self.lambda_e * doubt if self.plus else total


def _check_range(samples: Samples) -> None:
    """Raise for float images with pixels outside of [0, 1]: changes of colours would cut them off.

    Raises:
        UserError: for such images.
    """
    if not len(samples) or not samples.read(torch.arange(1)).is_floating_point():
        return
    low, high = (float(edge) for edge in samples.read().aminmax())
    if low < 0 or high > 1:
        raise UserError(
            "method.view=colour needs pixels of 0 to 1, or of 0 to 255 as uint8, but this dataset has floats of "
            f"{low:g} to {high:g}: use method.view=mirror, or convert the images"
        )
