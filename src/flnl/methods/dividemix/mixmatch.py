"""MixMatch's targets and DivideMix's regulariser."""

import torch
from torch import Tensor

from flnl.numerics.losses import log_mean_prediction


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """``p_c^(1/T) / Σ_k p_k^(1/T)`` [B, K], from probabilities [B, K].

    >>> sharpened(torch.tensor([[0.75, 0.25]]), 0.5)
    tensor([[0.9000, 0.1000]])
    """
    logs = probabilities.log() / temperature
    return torch.softmax(logs, 1)


def refined(labels: Tensor, right: Tensor, predicted: Tensor, temperature: float, classes: int) -> Tensor:
    """``Sharpen(w e_y + (1 - w) p)`` [B, K]: labels int64 [B], probabilities ``right`` w [B], predictions p [B, K]."""
    given = (labels[:, None] == torch.arange(classes, device=labels.device)).to(predicted.dtype)
    return sharpened(torch.lerp(predicted, given, right.to(predicted.dtype)[:, None]), temperature)


def divergence(logits: Tensor, prior: Tensor) -> Tensor:
    """``Σ_c π_c log(π_c / p̄_c)``, a scalar: π [K] is ``prior``, p̄ the mean prediction of the rows, logits [B, K]."""
    return torch.xlogy(prior, prior).sum() - (prior * log_mean_prediction(logits)).sum()
