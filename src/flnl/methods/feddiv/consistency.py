"""FedDiv's selection of training samples: relabel noisy samples, keep those on which two models agree.

The local model's predictions are debiased: its bias towards the client's dominant classes is removed from the logits.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flnl.core.ranges import Count, NonNegative, Share

SMALLEST = 1e-12
"""Lower bound of a class's mean predicted probability."""
CONFIDENT = 0.85
"""The largest debiased probability above which a sample is confident, as in the withdrawn code."""


def debiased(logits: Tensor, bias: Tensor, xi: NonNegative = 0.5) -> Tensor:
    """``F(x) = f(x) - ξ log p̂`` [n, K], from logits [n, K] and the mean prediction p̂ [K] (FedDiv, Eq. 9)."""
    return logits - xi * bias.clamp_min(SMALLEST).log()


def no_bias(num_classes: int) -> Tensor:
    """Initial p̂ [K] of a client: uniform, float64."""
    return torch.full((num_classes,), 1 / num_classes, dtype=torch.float64)


def next_bias(
    bias: Tensor,
    logits: Tensor,
    m: Share = 0.2,
    *,
    samples: Literal["all", "confident"] = "all",
    xi: NonNegative = 0.5,
) -> Tensor:
    """``p̂ ← m p̂ + (1-m) mean_x p(x)`` [K], from logits [n, K] of the trained local model (FedDiv, Eq. 12).

    ``samples=confident``, as in the withdrawn code, averages only the samples whose largest debiased probability is
    above ``CONFIDENT``; if there is none, p̂ stays as it is.
    """
    predictions = torch.softmax(logits.to(bias.dtype), dim=1)
    among = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    if samples == "confident":
        among = torch.softmax(debiased(logits.to(bias.dtype), bias, xi), dim=1).amax(1) > CONFIDENT
    count = among.sum()
    mean = torch.where(among[:, None], predictions, 0.0).sum(0) / count.clamp_min(1)
    return torch.where(count > 0, m * bias + (1 - m) * mean, bias)


@dataclass(frozen=True)
class Selected:
    """The samples that a client trains on, and their labels."""

    keep: Tensor  # bool [n]
    labels: Tensor  # int64 [n], predictions for relabelled samples, given labels for the others
    noise_level: float  # δ̂_k, the share of samples that the filter flags as noisy
    noisy: bool  # whether the client counts as noisy


@dataclass(frozen=True)
class Selection:
    """Selects the samples that a client trains on, and their labels (FedDiv, Eqs. 8, 10, 11).

    If ``δ̂ = |noisy| / n`` is below ``delta``, all samples are used with their given labels. Otherwise noisy samples
    whose largest probability under the global model is ``≥ zeta`` are relabelled with its prediction ŷ, other noisy
    samples are dropped, and of the clean and relabelled samples those stay for which the debiased local prediction ỹ
    equals ŷ.

    ``strict_delta``: a client is noisy if δ̂ > ``delta``, as in the text; Eq. 11 has δ̂ ≥ ``delta``.
    ``relabel_min_delta``: relabelled samples are used if δ̂ is at least this; the withdrawn code requires δ̂ > 0.2.
    ``pcs=cached``, as in the withdrawn code: ỹ is computed at the end of the client's previous visit, and agreement is
    required only from visit number ``pcs_start`` (from 0) on; the withdrawn code has 5. ``clean_agrees`` also requires
    the given label of clean samples to equal ŷ; Eq. 10 does not.
    """

    delta: Share = 0.1
    strict_delta: bool = False
    zeta: Share = 0.75
    relabel: bool = True
    relabel_min_delta: Share = 0.0
    pcs: Literal["per_epoch", "cached", "off"] = "per_epoch"
    pcs_start: Count = 0
    clean_agrees: bool = False

    def __call__(
        self, clean: Tensor, given: Tensor, probabilities: Tensor, local: Tensor | None, visit: int = 0
    ) -> Selected:
        """Select among the samples of one client.

        Args:
            clean: the filter's flags, bool [n].
            given: the client's current labels, int64 [n].
            probabilities: predictions of the global model [n, K].
            local: ỹ, int64 [n]; None if there is none yet: then no agreement is required.
            visit: number of earlier visits of the client.
        """
        level = float((~clean).double().mean()) if len(clean) else 0.0
        noisy = level > self.delta if self.strict_delta else level >= self.delta
        if not noisy:
            return Selected(torch.ones_like(clean), given, level, noisy)
        confidence, prediction = probabilities.max(dim=1)
        relabelled = ~clean & (confidence >= self.zeta)
        if not self.relabel or level < self.relabel_min_delta:
            relabelled = torch.zeros_like(clean)
        keep = clean & (prediction == given) if self.clean_agrees else clean
        keep = keep | relabelled
        if self.pcs != "off" and local is not None and visit >= self.pcs_start:
            keep = keep & (prediction == local)
        return Selected(keep, torch.where(relabelled, prediction, given), level, noisy)
