"""Local intrinsic dimensionality (LID) of predictions, by which FedCorr detects noisy clients."""

import torch
from torch import Tensor


def lid(points: Tensor, k: int, *, guard: bool = True) -> Tensor:
    """Local intrinsic dimensionality of each of ``points`` [n, d] among the others, float64 [n].

    The maximum-likelihood estimate ``-((1/k) Σ_{i≤k} log(r_i / r_k))^-1`` over the distances r_1 ≤ … ≤ r_k to the k
    nearest other points (Amsaleg et al. 2015; FedCorr, Eq. 2). With fewer than k other points, all of them are used.

    With ``guard``: 0 if r_k = 0; distances of zero count as 1e-12 (or r_k, if that is less); NaN if all k distances are
    equal up to rounding, since the estimate diverges there. Without it, the computation of the authors' program:
    float32 points, 1e-6 added to r_k and to the sum, and k in the numerator for any number of points.

    >>> lid(torch.tensor([[0.0], [1.0], [2.0]]), k=2)[0].item()  # 2 / ln 2
    2.8853900817779268
    """
    n = len(points)
    neighbours = min(k, n - 1)
    if neighbours < 1:
        return torch.zeros(n, dtype=torch.float64)
    points = points.double() if guard else points.float().double()
    distances = torch.cat(
        [
            torch.cdist(rows, points, compute_mode="donot_use_mm_for_euclid_dist").topk(neighbours + 1, largest=False)[
                0
            ]
            for rows in points.split(max(1, 2**22 // n))
        ]
    )
    nearest = distances[:, 1:]  # the first is the point itself
    farthest = nearest[:, -1:]
    if not guard:
        total = torch.log(nearest / (farthest + 1e-6)).sum(1) + 1e-6
        return torch.where(torch.isneginf(total), 0.0, -k / total)
    nearest = torch.where(nearest == 0, farthest.clamp_max(1e-12), nearest)
    total = torch.log(nearest / farthest).sum(1)
    values = torch.where(total > -1e-9 * neighbours, torch.nan, -neighbours / total)
    return torch.where(farthest[:, 0] == 0, 0.0, values)


def lid_score(points: Tensor, k: int, *, guard: bool = True) -> float:
    """Mean LID of a client's predictions [n, K] over the samples with a finite estimate; 0 if there is none."""
    values = lid(points, k, guard=guard)
    values = values[torch.isfinite(values)]
    return float(values.mean()) if len(values) else 0.0
