"""Extends per-label losses to training targets: labels, or soft labels after mixing."""

import torch
from torch import Tensor


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
    return losses.gather(1, targets[:, None])[:, 0]


def mixed_pair(target: Tensor, partner: Tensor, share: float | Tensor) -> Tensor:
    """The soft label of a mixed input, ``λ t_a + (1 - λ) t_b`` [B, K]; ``share`` is λ, of all rows or of each [B]."""
    share = torch.as_tensor(share, dtype=target.dtype, device=target.device)
    share = share[:, None] if share.dim() == 1 else share
    return share * target + (1 - share) * partner
