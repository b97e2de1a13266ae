"""Class-wise centroids of features: how a client moves its own, and how the server combines those of many clients.

Centroids are [C, D], one a class, of features [n, D]. A row of zeros stands for a class without a centroid: its cosine
with anything is 0.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.stored import stored


@stored("GlobalCentroids")
class GlobalCentroids:
    """Sent to the client from the second round on: f_G, float [C, D]; 0 for a class that nobody has had."""

    values: Tensor


def cosine(one: Tensor, other: Tensor) -> Tensor:
    """The cosine of the last dimensions, which are removed; 0 where either vector is 0."""
    return (F.normalize(one, dim=-1) * F.normalize(other, dim=-1)).sum(-1)


def nearest_class(features: Tensor, centroids: Tensor) -> Tensor:
    """``ỹ_i = argmax_j cos(f^j, f_i)``, int64 [n]; of equal cosines the first class."""
    return (features @ F.normalize(centroids, dim=1).T).argmax(1)  # the norm of f_i changes no order


def class_means(features: Tensor, labels: Tensor, num_classes: int, chosen: Tensor | None = None) -> Tensor:
    """The mean feature of each class, [C, D], over the ``chosen`` samples, bool [n]; 0 for a class without any.

    >>> class_means(torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([0, 0, 2]), 3).tolist()
    [[2.0], [0.0], [5.0]]
    """
    member = labels[:, None] == torch.arange(num_classes, device=labels.device)
    rows = (member if chosen is None else member & chosen[:, None]).to(features.dtype)
    means: Tensor = rows.T @ features / rows.sum(0).clamp_min(1)[:, None]
    return means


def moved(centroids: Tensor, means: Tensor) -> Tensor:
    """``f^j ← (1 - s_j²) f^j + s_j² f̂^j`` with ``s_j = cos(f^j, f̂^j)``, from a batch's class means f̂; all [C, D].

    A class that the batch does not have, or that has no centroid, stays as it is.
    """
    share = cosine(centroids, means).square()[:, None]
    return (1 - share) * centroids + share * means


def combined(before: Tensor, clients: Tensor, counts: Tensor) -> Tensor:
    """``f_G^j = Σ_k w_k f_k^j / Σ_k w_k`` with ``w_k = max(0, cos(f_G^j, f_k^j))``, float64 [C, D].

    Where all w_k are 0, as for a class that has no centroid yet, the samples count: w_k = n_k^j. If there are none,
    the class keeps what it has.

    Args:
        before: f_G, float64 [C, D].
        clients: f_k of m clients, float64 [m, C, D].
        counts: n_k^j, the client's samples of each class, [m, C].
    """
    agreement = cosine(before, clients).clamp_min(0)
    weights = torch.where(agreement.sum(0) > 0, agreement, counts.to(agreement.dtype))
    total = weights.sum(0)
    mean = (weights[:, :, None] * clients).sum(0) / torch.where(total > 0, total, 1.0)[:, None]
    return torch.where(total[:, None] > 0, mean, before)
