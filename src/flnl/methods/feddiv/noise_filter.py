"""FedDiv's noise filter: a mixture of two Gaussians over losses, fitted on the clients, averaged on the server.

Clients send only the six parameters, no losses or labels. The component with the smaller mean is the clean one.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from torch import Tensor

from flnl.core.ranges import Positive, Share
from flnl.core.stored import stored
from flnl.numerics.losses import sample_losses
from flnl.numerics.mixture import REGULARISATION, two_gaussians
from flnl.numerics.scaling import Array, alike, finite, min_max

Mask = NDArray[np.bool_]
LossKind = Literal["ce", "ce_of_softmax"]
LossNorm = Literal["minmax", "none"]
VarianceRule = Literal["linear", "squared_share", "moment_matching"]
Reach = Literal["federated", "degraded", "local"]

EMPTY = 1e-9
"""A component with at most this mass counts as empty; also the lower bound of a component's share."""


@stored("Filter")
class Filter:
    """W = (μ, σ², π): means, variances (not deviations) and shares of two Gaussians; the shares sum to 1."""

    mean: tuple[float, float]
    variance: tuple[Positive, Positive]
    share: tuple[Share, Share]

    @property
    def clean(self) -> int:
        """Index of the clean component."""
        return int(self.mean[1] < self.mean[0])

    def ordered(self) -> "Filter":
        """The same mixture with the clean component first."""
        if self.clean == 0:
            return self
        return Filter(self.mean[::-1], self.variance[::-1], self.share[::-1])


# ---------------------------------------------------------------------------------------------------------- losses


def filter_losses(logits: Tensor, labels: Tensor, *, loss: LossKind = "ce", norm: LossNorm = "minmax") -> Array:
    """The losses that filters are fitted and applied to: float64 [n], from logits [n, K] and labels [n] (Eq. 2).

    ``loss=ce_of_softmax`` applies the softmax twice, as the withdrawn code does.
    """
    return normalised(sample_losses(logits, labels, of_softmax=loss == "ce_of_softmax").numpy(), norm)


def normalised(losses: Array, norm: LossNorm = "minmax") -> Array:
    """``(ℓ - min ℓ) / (max ℓ - min ℓ)`` over the client's losses [n]; with ``norm="none"`` the losses as they are.

    The scaling makes losses under two models comparable: a filter is fitted under the local model and applied under the
    global one. The withdrawn code does this, the paper does not mention it. The losses of a perfectly clean client are
    scaled to [0, 1] too. Equal losses become 0, those that are not finite 1.

    >>> normalised(np.array([1.0, 2.0, 5.0])).tolist()
    [0.0, 0.25, 1.0]
    """
    return losses if norm == "none" else min_max(losses)


# ------------------------------------------------------------------------------------------------------------- fit


def fit(
    losses: Array, start: Filter, *, sort: bool = True, tolerance: Positive = 1e-7, iterations: int = 1000
) -> Filter:
    """Fit the local filter: EM on ``losses`` [n] from ``start`` until convergence (FedDiv, Algorithm 2).

    EM stops when the mean log-likelihood grows by less than ``tolerance`` in a step. With fewer than two losses, or
    equal ones, ``start`` is returned. ``sort`` puts the clean component first; the withdrawn code does not, so its
    server may average one client's clean component with another's noisy one.
    """
    values = finite(losses)
    fitted = start
    if not alike(values):
        before = -np.inf
        for _ in range(iterations):
            likelihood = float(np.logaddexp(*_log_densities(fitted, values)).mean())
            if likelihood - before < tolerance:
                break
            before = likelihood
            fitted = em_step(values, fitted)
    return fitted.ordered() if sort else fitted


def first_fit(losses: Array) -> Filter | None:
    """Fit a filter to ``losses`` [n] without a start: EM from the best cut of the sorted losses; deterministic.

    None if no filter can be fitted: fewer than two losses, or equal ones.
    """
    mixture = two_gaussians(finite(losses))
    if not mixture.split:
        return None
    return fit(losses, Filter(mixture.means, mixture.variances, _shares(np.array(mixture.weights))))


def em_step(losses: Array, now: Filter) -> Filter:
    """One step of EM on finite ``losses`` [n] (FedDiv, Algorithm 2, lines 3 to 6).

    A variance is at least 1e-6 of that of all losses. An empty component keeps its mean and variance.
    """
    x = np.asarray(losses, np.float64)
    belongs = _posteriors(now, x)
    mass = belongs.sum(1)
    held = np.maximum(mass, EMPTY)
    mean = np.where(mass > EMPTY, belongs @ x / held, now.mean)
    around = (belongs * (x - mean[:, None]) ** 2).sum(1) / held
    variance = np.where(mass > EMPTY, np.maximum(around, REGULARISATION * x.var()), now.variance)
    return Filter(_pair(mean), _pair(variance), _shares(mass))


def blobs(rng: np.random.Generator) -> Filter:
    """The withdrawn code's initial filter, independent of the clients: fitted to two random clusters.

    The clusters have 50 values each, with unit variance, around centres drawn from U(-10, 10).
    """
    centres = rng.uniform(-10, 10, 2)
    fitted = first_fit(rng.normal(centres.repeat(50), 1.0))
    assert fitted is not None, "normal draws are not all equal"
    return fitted


def _log_densities(of: Filter, x: Array) -> Array:
    """``log(π_g N(x; μ_g, σ²_g))`` [2, n]."""
    mean, variance, share = (np.array(v)[:, None] for v in (of.mean, of.variance, of.share))
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(share) - 0.5 * (np.log(2 * np.pi * variance) + (x - mean) ** 2 / variance))


def _posteriors(of: Filter, x: Array) -> Array:
    """Posterior probability of each component, [2, n] (Eq. 3)."""
    first, second = _log_densities(of, x)
    return np.stack([expit(first - second), expit(second - first)])


def _pair(values: Array) -> tuple[float, float]:
    return float(values[0]), float(values[1])


def _shares(mass: Array) -> tuple[float, float]:
    share = np.maximum(mass / mass.sum(), EMPTY)
    return _pair(share / share.sum())


# ------------------------------------------------------------------------------------------------------------- use


def posterior_of_clean(losses: Array, by: Filter) -> Array:
    """``p("clean" | x, y)`` for each loss [n], by Bayes' rule (FedDiv, Eq. 6); 0 for non-finite losses.

    It is not monotone if the variances differ: far below the clean mean, the wider component is the likelier one.
    """
    values = np.asarray(losses, np.float64)
    posterior = _posteriors(by, np.where(np.isfinite(values), values, 0.0))[by.clean]
    return np.where(np.isfinite(values), posterior, 0.0)


def clean_flags(
    losses: Array, by: Filter, *, threshold: Share = 0.5, guard: bool = True, guard_above: bool = False
) -> Mask:
    """The samples that count as clean, bool [n]: those with ``p("clean") ≥ threshold`` (FedDiv, Eq. 7).

    Variances that differ turn the flags round far from both means: the wider component is the likelier one there. With
    ``guard``, losses below the clean mean count as clean. With ``guard_above``, losses above the noisy mean are judged
    as one at the noisy mean. With both, the flag is monotone in the loss.
    """
    values = np.asarray(losses, np.float64)
    judged = np.minimum(values, by.mean[1 - by.clean]) if guard_above else values
    judged = np.where(np.isfinite(values), judged, values)
    flags = posterior_of_clean(judged, by) >= threshold
    return flags | (values < by.mean[by.clean]) if guard else flags


# ------------------------------------------------------------------------------------------------------ aggregation


def aggregate(filters: Sequence[Filter], counts: Sequence[float], *, variance: VarianceRule = "linear") -> Filter:
    """Average the filters of clients with ``counts`` n_k samples into the federated filter (FedDiv, Eq. 5).

    With w_k = n_k / Σ n_j, by component: ``linear``, as in the paper, is ``Σ w_k (μ_k, σ²_k, π_k)``. ``squared_share``,
    as in the withdrawn code, takes ``Σ w_k² σ²_k`` for the variance: variances shrink with the number of clients,
    towards a hard threshold. ``moment_matching`` gives each component the moments of the pooled components, with
    weights w_k π_k and including the spread of the means.

    Raises:
        ValueError: if there are no filters, or no samples.
    """
    if len(filters) == 0 or not sum(counts) > 0:
        raise ValueError("a federated filter needs at least one client with samples")
    weight = np.array(counts, np.float64)[:, None] / sum(counts)
    mean, var, share = (np.array(part) for part in zip(*((f.mean, f.variance, f.share) for f in filters), strict=True))
    pooled = (weight * share).sum(0)
    if variance == "moment_matching":
        within = np.where(pooled > 0, weight * share / np.where(pooled > 0, pooled, 1.0), weight)
        centre = (within * mean).sum(0)
        spread = (within * (var + (mean - centre) ** 2)).sum(0)
    else:
        centre = (weight * mean).sum(0)
        spread = ((weight if variance == "linear" else weight**2) * var).sum(0)
    return Filter(_pair(centre), _pair(spread), _pair(pooled)).ordered()


def filter_of(
    client: int,
    cached: Mapping[int, Filter],
    counts: Mapping[int, float],
    reported: Collection[int],
    *,
    reach: Reach = "federated",
    variance: VarianceRule = "linear",
) -> Filter:
    """The filter for ``client``, from the filters ``cached`` on the server.

    ``federated`` averages all of them; ``degraded`` only those ``reported`` in this round; ``local`` is the client's.
    """
    if reach == "local":
        return cached[client]
    some = sorted(cached if reach == "federated" else set(reported) & set(cached))
    return aggregate([cached[k] for k in some], [counts[k] for k in some], variance=variance)
