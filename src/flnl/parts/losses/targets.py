"""Losses of training targets: labels, or soft labels after mixing."""

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.onto import onto


def expected(losses: Tensor, targets: Tensor) -> Tensor:
    """``Σ_j t_j ℓ_j`` [B], from the loss for each label [B, K] and targets, int64 [B] or float [B, K].

    For mixup's targets this is ``λ ℓ_a + (1−λ) ℓ_b``, mixup's definition for any loss.

    >>> import torch
    >>> losses = torch.tensor([[1.0, 5.0]])
    >>> expected(losses, torch.tensor([1])), expected(losses, torch.tensor([[0.75, 0.25]]))
    (tensor([5.]), tensor([2.]))
    """
    if targets.is_floating_point():
        return (targets * losses).sum(1)
    return of_labels(losses, targets)


def cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """The cross-entropy [B] of logits [B, K] and targets, int64 [B] or float [B, K]; torch's, to the bit.

    Torch's own, run for many clients at once, computes its gradient by ``scatter_add``; see ``of_labels``.
    """
    return expected(-F.log_softmax(logits, dim=1), targets)


def of_labels(values: Tensor, labels: Tensor) -> Tensor:
    """The entry of each row of ``values`` [B, K] at its label, int64 [B]: [B].

    Its gradient is computed without ``scatter_add``, which in CUDA's deterministic mode waits for the device.
    """
    classes = torch.arange(values.shape[1], device=values.device)
    return torch.where(labels[:, None] == classes, values, 0.0).sum(1)


def mixed_pair(target: Tensor, partner: Tensor, share: float | Tensor) -> Tensor:
    """The soft label of a mixed input, ``λ t_a + (1 - λ) t_b`` [B, K]; ``share`` is λ, of all rows or of each [B]."""
    if isinstance(share, Tensor):
        share = onto(share, target.device, target.dtype)
        share = share[:, None] if share.dim() == 1 else share
    else:
        share = target.new_full((), share)
    return share * target + (1 - share) * partner
