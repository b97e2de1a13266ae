"""Per-sample losses, their weighted mean, and the mean prediction of a batch."""

import torch
import torch.nn.functional as F
from torch import Tensor


def sample_losses(logits: Tensor, labels: Tensor, *, of_softmax: bool = False) -> Tensor:
    """Cross-entropy of each sample, float64 [n], from logits [n, K] and labels [n].

    ``of_softmax`` computes what FedCorr's released code does: the cross-entropy of the softmax's *output*, so softmax
    is applied twice; its range has width 1 for any number of classes.
    """
    logits = logits.double()
    return F.cross_entropy(F.softmax(logits, dim=1) if of_softmax else logits, labels, reduction="none")


def weighted_mean(losses: Tensor, weight: Tensor | None) -> Tensor:
    """Mean over the last dimension, weighted if there is a ``weight`` of the same shape; 0 where all weights are 0."""
    if weight is None:
        return losses.mean(-1)
    return (weight * losses).sum(-1) / weight.sum(-1).clamp_min(1e-12)


def log_mean_prediction(logits: Tensor, weight: Tensor | None = None) -> Tensor:
    """``log p̄`` [K], with p̄ the mean of the rows' softmax, from logits [B, K]; finite for any finite logits.

    ``weight`` [B] is each row's weight in the mean; None, or only zeros, for equal weights.
    """
    logs = F.log_softmax(logits, dim=1)
    if weight is None:
        share = torch.full_like(logs[:, 0], 1 / len(logs))
    else:
        weight = torch.where(weight.sum() > 0, weight, 1.0)
        share = weight / weight.sum()
    return torch.logsumexp(logs + share.log()[:, None], dim=0)
