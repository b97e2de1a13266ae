"""Which of a client's samples count as clean: what mixtures of losses say, under its own model and its neighbours'."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from flnl.core.ranges import Share
from flnl.numerics.scaling import Array


def above(probability: Array, threshold: Share) -> Tensor:
    """Mask bool [n] of the samples whose ``probability`` [n] is above ``threshold``; of all samples if none is."""
    mask = torch.from_numpy(probability > threshold)
    return mask if bool(mask.any()) else torch.ones_like(mask)


def agreed(weights: Sequence[float], probabilities: Sequence[Array]) -> Array:
    """``Σ_u w_u P_u`` [n], from the ``weights`` of the models and each one's probabilities [n] (FedRN)."""
    return np.asarray(np.average(np.stack(probabilities), axis=0, weights=weights))
