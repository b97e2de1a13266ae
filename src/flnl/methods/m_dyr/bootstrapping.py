"""The losses of M-DYR: targets between the given label and what the network predicts."""

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.onto import onto
from flnl.core.step import Mixing
from flnl.parts.losses.targets import of_labels

COLDEST = 1e-3
"""The last temperature (the authors' program)."""


def bootstrapped(logs: Tensor, labels: Tensor, predicted: Tensor, wrong: Tensor) -> Tensor:
    """``(1 - B) CE(p, y) + B CE(p, q)`` [B], with log p and q [B, K], labels y int64 [B] and B in [0, 1], [B]."""
    return (1 - wrong) * of_labels(-logs, labels) - wrong * (predicted * logs).sum(1)


def one_hot(logits: Tensor) -> Tensor:
    """The class of the largest logit, as a distribution [B, K]."""
    return (logits.argmax(1)[:, None] == torch.arange(logits.shape[1], device=logits.device)).to(logits.dtype)


def both(logs: Tensor, labels: Tensor, predicted: Tensor, wrong: Tensor, mixing: Mixing) -> Tensor:
    """The bootstrapped losses of a mixed batch [B]: that of its own target with λ, that of its partner's with 1 - λ."""
    partner = onto(mixing.partner, logs.device)
    own = bootstrapped(logs, labels, predicted, wrong)
    other = bootstrapped(logs, labels[partner], predicted[partner], wrong[partner])
    return mixing.share * own + (1 - mixing.share) * other


def by_cleanness(inputs: Tensor, wrong: Tensor, partner: Tensor) -> Tensor:
    """Inputs [B, ...] mixed with their partners', each with weight 1 - B."""
    partner = onto(partner, inputs.device)
    share = (1 - wrong) / ((1 - wrong) + (1 - wrong[partner]))
    share = share.reshape(-1, *[1] * (inputs.dim() - 1)).to(inputs.dtype)
    return share * inputs + (1 - share) * inputs[partner]


def temperature(step: int, length: int) -> float:
    """From 1 to ``COLDEST`` in ``length`` equal steps, from 0, and then constant.

    >>> [round(temperature(step, 3), 4) for step in (0, 1, 2, 9)]
    [1.0, 0.5005, 0.001, 0.001]
    """
    return 1 + (COLDEST - 1) * min(1.0, step / max(length - 1, 1)) if length > 1 else COLDEST


def softened(logits: Tensor, heat: float) -> Tensor:
    """``softmax(z / T)`` [B, K]."""
    return F.softmax(logits / heat, dim=1)
