"""The mean prediction of a batch."""

import torch
import torch.nn.functional as F
from torch import Tensor


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
