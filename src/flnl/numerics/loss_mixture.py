"""The probability that a sample's label is right, from a mixture of two Gaussians of losses."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from flnl.core.ranges import Positive, PositiveCount
from flnl.numerics.losses import sample_losses
from flnl.numerics.mixture import two_gaussians
from flnl.numerics.scaling import Array, min_max


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
