"""FLR's pseudo labels: a mixture of the running averages of the server's and the client's predictions.

A client keeps two running averages of predictions per sample, s of the received model and m of its own; it sends
nothing additional. The regulariser pulls predictions towards the mixture before wrong labels are memorised.
"""

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from flnl.core.ranges import Count, PositiveCount, Share

AlphaSchedule = Literal["linear", "constant"]
Warmup = Literal["ce", "server_reg", "scheduled"]
Init = Literal["prediction", "zero"]
Clamp = Literal["inner", "normalised"]
PseudoLabel = Literal["vanilla", "local_only", "global_only", "mixture"]
Special = Literal["elr", "slr", "er"]

INNER_MAX = 0.9999
"""Largest inner product of prediction and pseudo label: the regulariser is at least log(1e-4)."""


@dataclass(frozen=True)
class Mixing:
    """The coefficients of one round."""

    alpha: Share  # share of the server's average in the pseudo label
    beta: Share  # share of the past in the server's average
    gamma: Share  # share of the past in the client's average
    regularised: bool  # whether the regulariser is active


@dataclass(frozen=True)
class Schedule:
    """``α(r) = α r/R``; ``β(r) = β`` from r = R/2 on, 0 before; ``γ(r) = γ`` from r = R_w on, 0 before (FLR, Sec. 4.3).

    r counts the rounds in [0, R), including the warm-up. ``alpha_schedule=constant`` keeps α constant.

    ``warmup`` defines the first R_w rounds: ``ce`` has no regulariser (Algorithm 1); ``server_reg`` uses the received
    model's prediction as the pseudo label, as a remark on the experiments says; ``scheduled`` applies the formulas, in
    which γ is 0.
    """

    alpha: Share
    beta: Share
    gamma: Share
    R: PositiveCount
    R_w: Count
    alpha_schedule: AlphaSchedule = "linear"
    warmup: Warmup = "ce"

    def at(self, round: int) -> Mixing:
        """The coefficients of a round (from 0); after R rounds they stay constant."""
        warm = round < self.R_w
        alpha = self.alpha if self.alpha_schedule == "constant" else self.alpha * min(round / self.R, 1.0)
        return Mixing(
            alpha=1.0 if warm and self.warmup == "server_reg" else alpha,
            beta=self.beta if round >= self.R / 2 else 0.0,
            gamma=0.0 if warm else self.gamma,
            regularised=not (warm and self.warmup == "ce"),
        )

    @property
    def uses_server(self) -> bool:
        """Whether s is needed in some round."""
        return self.alpha > 0 or (self.warmup == "server_reg" and self.R_w > 0)

    @property
    def uses_client(self) -> bool:
        """Whether m is needed in some round."""
        return self.alpha < 1 or self.alpha_schedule == "linear"

    def labelled_by(self, kind: PseudoLabel) -> "Schedule | None":
        """The rows of Table 1: only the client's average, only the server's, the mixture; None for ``vanilla``."""
        alone = replace(self, alpha_schedule="constant")
        return {
            "vanilla": None,
            "local_only": replace(alone, alpha=0.0),
            "global_only": replace(alone, alpha=1.0),
            "mixture": self,
        }[kind]

    def as_special(self, case: Special) -> "Schedule":
        """FLR's special cases: ELR is α = 0; SLR is α = 1; ER is α = γ = 0, the prediction as its own pseudo label."""
        return replace(
            self,
            alpha=1.0 if case == "slr" else 0.0,
            gamma=0.0 if case == "er" else self.gamma,
            alpha_schedule="constant",
        )


def running_average(
    kept: Tensor, prediction: Tensor, past: float | Tensor, first: Tensor, *, init: Init = "prediction"
) -> Tensor:
    """``v ← past · v + (1 - past) · p`` per row [B, K]; rows in ``first`` [B] start at p (FLR, Eq. 1). No gradient.

    ``init=zero`` starts at v = 0, as in ELR's code: rows then sum to less than 1 at first.
    """
    prediction = prediction.detach()
    kept = torch.where(first[:, None], prediction if init == "prediction" else torch.zeros_like(prediction), kept)
    return past * kept + (1 - past) * prediction


def bounded(prediction: Tensor, most: Share) -> Tensor:
    """Each probability of ``prediction`` [B, K] in [1 - ``most``, ``most``], as in ELR's code; not on the simplex."""
    return prediction.clamp(1 - most, most)


def mixture(server: Tensor, client: Tensor, alpha: float | Tensor) -> Tensor:
    """The pseudo label ``t = α s + (1 - α) m`` [B, K] (FLR, Eq. 1)."""
    return alpha * server + (1 - alpha) * client


def regulariser(logits: Tensor, target: Tensor, *, inner_max: Share = INNER_MAX, clamp: Clamp = "inner") -> Tensor:
    """``log(1 - ⟨p, t⟩)`` [B], with p the softmax of logits [B, K] and no gradient through t [B, K] (FLR, Eq. 1).

    Its gradient with respect to the logits is ``p_c (⟨p, t⟩ - t_c) / (1 - ⟨p, t⟩)`` (Eq. 2; the second line of Eq. 5
    has the wrong sign). t is on the simplex, as an average of predictions. ``clamp=inner`` bounds ⟨p, t⟩ by
    ``inner_max``, with gradient 0 beyond; ``normalised`` bounds each p_c from both sides instead, as ELR's code does,
    which averages these p_c divided by their sum.
    """
    p, t = torch.softmax(logits, dim=1), target.detach()
    if clamp == "normalised":
        p = bounded(p, inner_max)
    rest = 1 - (p * t).sum(1)
    return torch.log(rest.clamp_min(1 - inner_max) if clamp == "inner" else rest)
