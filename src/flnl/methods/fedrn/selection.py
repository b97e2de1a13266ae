"""Which of a client's samples count as clean: by mixtures of losses under its own model and its neighbours'."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from flnl.core.ranges import Positive, Share
from flnl.numerics.losses import sample_losses
from flnl.numerics.mixture import two_gaussians
from flnl.numerics.scaling import Array, min_max


@dataclass(frozen=True)
class LossMixture:
    """Two Gaussians fitted to a model's losses, scaled to [0, 1]; samples of the lower one are clean (FedRN).

    EM starts from the split of the losses with the least squared error, so it needs no random numbers.
    """

    tolerance: Positive  # gain of the mean log-likelihood at which EM ends
    min_variance: Positive  # added to variances, in units of the scaled losses squared

    def clean_probability(self, logits: Tensor, labels: Tensor) -> Array:
        """The probability that each label is right, float64 [n], from logits [n, K] and labels [n].

        Equal losses all give 1.
        """
        losses = min_max(sample_losses(logits, labels).numpy())
        return np.asarray(1 - two_gaussians(losses, self.tolerance, variance=self.min_variance).posterior)


def above(probability: Array, threshold: Share) -> Tensor:
    """Mask bool [n] of the samples whose ``probability`` [n] is above ``threshold``; of all samples if none is."""
    mask = torch.from_numpy(probability > threshold)
    return mask if bool(mask.any()) else torch.ones_like(mask)


def agreed(weights: Sequence[float], probabilities: Sequence[Array]) -> Array:
    """``Σ_u w_u P_u`` [n], from the ``weights`` of the models and each one's probabilities [n] (FedRN)."""
    return np.asarray(np.average(np.stack(probabilities), axis=0, weights=weights))
