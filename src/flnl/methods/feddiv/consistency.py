"""FedDiv's choice of training samples: relabel what the filter doubts, keep what two models agree on.

The local model's labels come from logits from which its bias towards the client's dominant classes is taken out.
"""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flnl.core.ranges import Count, NonNegative, Share

SMALLEST = 1e-12
"""A class that a client never predicts counts as predicted so often."""


def debiased(logits: Tensor, bias: Tensor, xi: NonNegative = 0.5) -> Tensor:
    """``F(x) = f(x) - ξ log p̂`` [n, K], from logits [n, K] and the mean prediction p̂ [K] (FedDiv, Eq. 9)."""
    return logits - xi * bias.clamp_min(SMALLEST).log()


def no_bias(num_classes: int) -> Tensor:
    """p̂ [K] of a client that has not been visited: uniform, float64."""
    return torch.full((num_classes,), 1 / num_classes, dtype=torch.float64)


def next_bias(
    bias: Tensor,
    logits: Tensor,
    m: Share = 0.2,
    *,
    samples: Literal["all", "confident"] = "all",
    xi: NonNegative = 0.5,
    confidence: Share = 0.85,
) -> Tensor:
    """``p̂ ← m p̂ + (1-m) mean_x p(x)`` [K], over logits [n, K] of the trained local model (FedDiv, Eq. 12).

    ``samples=confident``, the withdrawn code's, takes only those whose de-biased probability is above ``confidence``;
    with none of them p̂ stays.
    """
    predictions = torch.softmax(logits.to(bias.dtype), dim=1)
    among = torch.ones(len(logits), dtype=torch.bool, device=logits.device)
    if samples == "confident":
        among = torch.softmax(debiased(logits.to(bias.dtype), bias, xi), dim=1).amax(1) > confidence
    count = among.sum()
    mean = torch.where(among[:, None], predictions, 0.0).sum(0) / count.clamp_min(1)
    return torch.where(count > 0, m * bias + (1 - m) * mean, bias)


@dataclass(frozen=True)
class Selected:
    """What a client trains on."""

    keep: Tensor  # bool [n]
    labels: Tensor  # int64 [n], relabelled where a sample was; as given elsewhere
    noise_level: float  # δ̂_k, the share of samples that the filter takes for noisy
    noisy: bool  # whether that makes the client a noisy one


@dataclass(frozen=True)
class Selection:
    """Which samples a client trains on, and with which labels (FedDiv, Eqs. 8, 10, 11).

    With ``δ̂ = |noisy| / n`` below ``delta`` all samples are used as given. Otherwise a noisy sample whose largest
    probability under the global model is ``≥ zeta`` takes its prediction ŷ, the other noisy ones are left out, and
    of clean and relabelled ones those stay where the de-biased local prediction ỹ agrees with ŷ.

    ``strict_delta``: a client is noisy at more than ``delta`` only, as the text has it; Eq. 11 has at least.
    ``relabel_min_delta``: relabelled samples are used from this δ̂ on; the withdrawn code has more than 0.2.
    ``pcs=cached`` is the withdrawn code's: ỹ is of the end of the client's last visit, and agreement is asked for only
    from its visit number ``pcs_start`` on (from 0; there 5). ``clean_agrees`` asks of a clean sample that its given
    label be ŷ, too; Eq. 10 does not.
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
        """The samples of one client.

        Args:
            clean: the filter's flags, bool [n].
            given: the labels that the client holds, int64 [n].
            probabilities: the global model's [n, K].
            local: ỹ, int64 [n]; None where there is none yet, and then no agreement is asked for.
            visit: how often the client has been trained before.
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
