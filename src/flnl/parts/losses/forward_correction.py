"""Forward correction: cross-entropy of given labels with the predictions that a transition matrix makes of them."""

import torch.nn.functional as F
from torch import Tensor

from flnl.parts.losses.targets import expected


def forward_loss(logits: Tensor, targets: Tensor, matrix: Tensor) -> Tensor:
    """``-log (Tᵀ p)_y = -log Σ_i p_i T_iy`` [B], with p the softmax of the logits [B, K] (Patrini et al. 2017).

    Targets are int64 [B] or float [B, K]. It is computed from logarithms, so it is exact for any p; T = I gives
    cross-entropy. It is infinite if no class with p_i > 0 can have the label.
    """
    logs, columns = F.log_softmax(logits, 1), matrix.log()
    columns = columns.to(logs.dtype)
    if targets.is_floating_point():
        return expected(-(logs[:, :, None] + columns).logsumexp(1), targets)
    return -(logs + columns.index_select(1, targets).T).logsumexp(1)
