"""One-dimensional Gaussian mixtures of two components, also of the losses of samples with right and wrong labels.

Degenerate input has a defined result, so that callers never have to handle NaN.
"""

import warnings
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from flnl.core.ranges import Positive, PositiveCount
from flnl.numerics.losses import sample_losses
from flnl.numerics.scaling import Array, alike, finite, min_max


@dataclass(frozen=True)
class Mixture:
    """Two one-dimensional Gaussians, sorted by their means."""

    means: tuple[float, float]
    variances: tuple[float, float]
    weights: tuple[float, float]
    upper: NDArray[np.bool_]  # [n], whether a value belongs to the component of the larger mean
    posterior: Array  # [n], probability of that component

    @property
    def split(self) -> bool:
        """Whether two components were found."""
        return bool(np.isfinite(self.means[1]))


TOLERANCE = 1e-3
"""EM stops once the mean log-likelihood gains less: scikit-learn's default, with which released codes run."""


def two_gaussians(
    values: Array, tolerance: float = TOLERANCE, *, variance: float | None = None, iterations: int | None = None
) -> Mixture:
    """Fit a Gaussian mixture of two components to ``values`` [n] by EM; the fit is independent of their scale.

    Each variance is increased by ``variance``, in units of the values squared, on which the fit then depends; by
    default by ``REGULARISATION``, a share of the variance of all values.

    EM ends when an iteration gains less than ``tolerance`` in the mean log-likelihood of the standardised values, or
    after ``iterations``; by default after 100, or later for a tolerance below ``TOLERANCE``.

    EM starts from the optimal split of the sorted values (exact 2-means), so the fit is deterministic. Fewer than two
    values, or nearly equal values, give a single component, and no value is ``upper``. Non-finite values are replaced
    by the largest finite one.
    """
    values = np.asarray(values, np.float64)
    usable = values[np.isfinite(values)]
    if alike(usable):
        mean, spread = (float(usable.mean()), float(usable.var())) if len(usable) else (float("nan"), float("nan"))
        nothing = np.zeros(len(values))
        return Mixture((mean, float("nan")), (spread, float("nan")), (1.0, 0.0), nothing > 0, nothing)
    column = finite(values)
    centre, scale = column.mean(), column.std()
    column = (column - centre) / scale  # because scikit-learn's lower bound on variances is absolute
    added = REGULARISATION if variance is None else variance / scale**2
    lower = column <= _two_means_cut(column)
    parts = column[lower], column[~lower]
    model = GaussianMixture(
        n_components=2,
        weights_init=[len(p) / len(column) for p in parts],
        means_init=[[p.mean()] for p in parts],
        precisions_init=[[[1 / (p.var() + added)]] for p in parts],
        reg_covar=added,
        tol=tolerance,
        max_iter=iterations or (100 if tolerance >= TOLERANCE else 100_000),
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
"""What is added to the variance of a component, relative to the variance of all values."""


def _two_means_cut(values: Array) -> float:
    """The largest value of the lower part, in the split of ``values`` [n] with the least squared error."""
    ordered = np.sort(values)
    sums = np.cumsum(ordered)[:-1]
    counts = np.arange(1, len(ordered))
    # The squared error is a constant minus this: the sum over parts of (sum of the part)^2 / its size.
    explained = sums**2 / counts + (ordered.sum() - sums) ** 2 / (len(ordered) - counts)
    explained = np.where(ordered[1:] > ordered[:-1], explained, -np.inf)  # equal values stay together
    return float(ordered[np.argmax(explained)])


def scaled_losses(logits: Tensor, labels: Tensor) -> Array:
    """Cross-entropies, scaled to [0, 1] over the samples, float64 [n], from logits [n, K] and labels [n]."""
    return min_max(sample_losses(logits, labels).numpy())


@dataclass(frozen=True)
class LossMixture:
    """Two Gaussians fitted to losses scaled to [0, 1]; samples of the one of smaller mean have right labels.

    EM starts from the split of the losses with the least squared error, so it needs no random numbers.
    """

    tolerance: Positive  # gain of the mean log-likelihood at which EM ends
    min_variance: Positive  # added to variances, in units of the scaled losses squared
    iterations: PositiveCount | None = None  # of EM at most; None: 100

    def right(self, losses: Array) -> Array:
        """The probability that each label is right, float64 [n], from scaled losses [n].

        Losses that are all equal, or fewer than two, give 1.
        """
        mixture = two_gaussians(losses, self.tolerance, variance=self.min_variance, iterations=self.iterations)
        return np.asarray(1 - mixture.posterior)

    def clean_probability(self, logits: Tensor, labels: Tensor) -> Array:
        """As ``right``, from logits [n, K] and labels [n]."""
        return self.right(scaled_losses(logits, labels))
