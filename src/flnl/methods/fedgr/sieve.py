"""How probably labels are right, from one mixture of the losses of many clients, and a client's pseudo-labels."""

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flnl.core.ranges import Positive, PositiveCount
from flnl.numerics.mixture import two_gaussians
from flnl.numerics.scaling import Array

log = logging.getLogger(__name__)
NO_LABEL = -1
"""Stands for a pseudo-label that a sample does not have."""
FEWEST = 4
"""Finite losses that a mixture needs."""


def lower_posterior(values: Array, means: Array, variances: Array, weights: Array) -> Array:
    """The probability, float64 [n], that each of ``values`` [n] is of the first of two Gaussians, [2] each."""
    apart = (values[:, None] - means) ** 2 / variances
    logs = np.log(weights) - 0.5 * (apart + np.log(variances))
    return np.asarray(np.exp(logs[:, 0] - np.logaddexp(logs[:, 0], logs[:, 1])))


@dataclass(frozen=True)
class Sieve:
    """Two Gaussians fitted to the losses of all clients of a round; labels of the one of smaller mean are right."""

    tolerance: Positive  # gain of the mean log-likelihood at which EM ends
    min_variance: Positive  # added to variances
    iterations: PositiveCount  # of EM, at most

    def __call__(self, losses: Mapping[int, Tensor]) -> dict[int, Tensor]:
        """The probability, float64 [n], that each label is right, from each client's losses [n].

        It is 1 for all if there are fewer than four finite losses, or if they are all equal.
        """
        if not losses:
            return {}
        pooled = torch.cat([*losses.values()]).double().numpy()
        finite = np.isfinite(pooled)
        right = np.ones(len(pooled))
        if finite.sum() >= FEWEST:
            found = two_gaussians(pooled, self.tolerance, variance=self.min_variance, iterations=self.iterations)
            if found.split:
                parts = (np.asarray(part) for part in (found.means, found.variances, found.weights))
                right = lower_posterior(np.where(finite, pooled, pooled[finite].max()), *parts)
        if (right == 1).all():
            log.warning("the losses of this round's clients are too few or equal: all their labels count as right")
        return dict(zip(losses, torch.from_numpy(right).split([len(own) for own in losses.values()]), strict=True))


def pseudo_labels(probabilities: Tensor, given: Tensor, noisy: Tensor, *, high: bool, confidence: float) -> Tensor:
    """A label, int64 [n], for each of a client's samples, or ``NO_LABEL``.

    A sample that is not ``noisy`` bool [n] has its ``given`` label, unless the client's noise is ``high``; others have
    the most probable class of ``probabilities`` [n, K] where that is above ``confidence``.
    """
    most, predicted = probabilities.max(1)
    confident = torch.where(most > confidence, predicted, NO_LABEL)
    return confident if high else torch.where(noisy, confident, given)
