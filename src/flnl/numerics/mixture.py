"""Shared numerics: local intrinsic dimensionality, two-component mixtures, per-sample losses.

Degenerate input has a stated answer here, so that nobody downstream meets a NaN.
"""

import warnings
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

Array = NDArray[np.float64]


def lid(points: Tensor, k: int, *, guard: bool = True) -> Tensor:
    """Local intrinsic dimensionality of each of ``points`` [n, d] among the others, float64 [n].

    The maximum-likelihood estimate ``-((1/k) Σ_{i≤k} log(r_i / r_k))^-1`` over the distances r_1 ≤ … ≤ r_k to the k
    nearest other points (Amsaleg et al. 2015; FedCorr, Eq. 2). With fewer than k other points, all of them serve.

    With ``guard``: 0 where r_k = 0; distances of zero count as 1e-12 (or r_k, if that is less); NaN where all k are
    equal up to rounding, since the estimate diverges there. Without it, what the authors' program computes: float32
    points, 1e-6 added to r_k and to the sum, and k in the numerator whatever the number of points.

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
    """Mean LID of a client's predictions [n, K]; samples with no estimate are left out, and 0 where none has one."""
    values = lid(points, k, guard=guard)
    values = values[torch.isfinite(values)]
    return float(values.mean()) if len(values) else 0.0


@dataclass(frozen=True)
class Mixture:
    """Two Gaussians on a line, in order of their means."""

    means: tuple[float, float]
    variances: tuple[float, float]
    weights: tuple[float, float]
    upper: NDArray[np.bool_]  # [n], whether a value belongs to the component of the larger mean
    posterior: Array  # [n], probability of that component

    @property
    def split(self) -> bool:
        """Whether two components were found."""
        return bool(np.isfinite(self.means[1]))


def two_gaussians(values: Array) -> Mixture:
    """A two-component Gaussian mixture fitted by EM to ``values`` [n], whatever their scale.

    EM starts from the best cut of the sorted values into two (exact 2-means), so nothing about the fit is random.
    Fewer than two values, or values that are all but equal, are one component: nothing is ``upper``. Values that are
    not finite count as the largest finite one.
    """
    values = np.asarray(values, np.float64)
    finite = values[np.isfinite(values)]
    if len(finite) == 0 or len(values) < 2 or np.ptp(finite) <= 1e-9 * max(1e-9, float(np.abs(finite).max())):
        mean, spread = (float(finite.mean()), float(finite.var())) if len(finite) else (float("nan"), float("nan"))
        nothing = np.zeros(len(values))
        return Mixture((mean, float("nan")), (spread, float("nan")), (1.0, 0.0), nothing > 0, nothing)
    column = np.where(np.isfinite(values), values, finite.max())
    centre, scale = column.mean(), column.std()
    column = (column - centre) / scale  # the fit's floor under variances is absolute
    lower = column <= _two_means_cut(column)
    parts = column[lower], column[~lower]
    model = GaussianMixture(
        n_components=2,
        weights_init=[len(p) / len(column) for p in parts],
        means_init=[[p.mean()] for p in parts],
        precisions_init=[[[1 / (p.var() + REGULARISATION)]] for p in parts],
        reg_covar=REGULARISATION,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(column[:, None])
    low, high = np.argsort(model.means_.ravel())
    posterior = model.predict_proba(column[:, None])[:, high]
    means, variances = model.means_.ravel() * scale + centre, model.covariances_.ravel() * scale**2
    return Mixture(
        (float(means[low]), float(means[high])),
        (float(variances[low]), float(variances[high])),
        (float(model.weights_[low]), float(model.weights_[high])),
        posterior > 0.5,
        posterior,
    )


REGULARISATION = 1e-6
"""Floor under the variance of a component, in units of the variance of all values."""


def _two_means_cut(values: Array) -> float:
    """The largest value of the lower part, in the cut of ``values`` [n] into two of least squared error."""
    ordered = np.sort(values)
    sums = np.cumsum(ordered)[:-1]
    counts = np.arange(1, len(ordered))
    # Squared error is constant minus this: the sum over parts of (sum of the part)^2 / its size.
    explained = sums**2 / counts + (ordered.sum() - sums) ** 2 / (len(ordered) - counts)
    explained = np.where(ordered[1:] > ordered[:-1], explained, -np.inf)  # equal values stay together
    return float(ordered[np.argmax(explained)])


def sample_losses(logits: Tensor, labels: Tensor, *, of_softmax: bool = False) -> Tensor:
    """Cross-entropy of each sample, float64 [n], from logits [n, K] and labels [n].

    ``of_softmax`` gives what FedCorr's released code computes: cross-entropy of the softmax's *output*, that is the
    softmax taken twice, whose range has width 1 for any number of classes.
    """
    logits = logits.double()
    return F.cross_entropy(F.softmax(logits, dim=1) if of_softmax else logits, labels, reduction="none")
