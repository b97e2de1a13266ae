"""Per-sample losses, and their weighted mean."""

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
