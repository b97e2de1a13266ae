"""Models drawn around the mean of the clients' models, and the samples of whose labels they are sure together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from flnl.core.onto import onto
from flnl.core.payload import Params, is_learned
from flnl.core.stored import stored
from flnl.numerics.roots import square_root

LEAST_VARIANCE = 1e-5
"""Of a direction's entries (FedBeat's program)."""


@stored("ModelMoments")
class ModelMoments:
    """Sent to all clients once: in which directions, and how far, their models lay from the mean, tensor by tensor."""

    means: Params  # of the directions (w_i - w) / ‖w_i - w‖
    variances: Params
    norms: Mapping[str, float]  # mean of ‖w_i - w‖

    @classmethod
    def of(cls, models: Sequence[Params], mean: Params, *, buffers: bool) -> ModelMoments:
        """Those of the clients' ``models`` around their ``mean``, of parameters and, with ``buffers``, float buffers.

        A model that has not moved a tensor has the direction 0.
        """
        means, variances, norms = {}, {}, {}
        for name, centre in mean.items():
            if not (is_learned(name, centre) or (buffers and centre.is_floating_point())):
                continue
            moved = torch.stack([model[name].double() - centre.double() for model in models])
            lengths = moved.flatten(1).norm(dim=1)
            shape = (-1, *[1] * centre.dim())
            directions = torch.where(lengths.view(shape) > 0, moved / lengths.clamp_min(1e-300).view(shape), 0.0)
            first = directions.mean(0)
            spread = (directions.square().mean(0) - first.square()).clamp_min(LEAST_VARIANCE)
            means[name], variances[name] = first.to(centre.dtype), spread.to(centre.dtype)
            norms[name] = float(lengths.mean())
        return cls(means, variances, norms)

    def member(self, mean: Params, rng: np.random.Generator, scale: float) -> Params:
        """One draw: ``w + ν (m + scale √v ε)`` with ε standard normal; what has no moments is the mean's."""
        drawn = dict(mean)
        for name, direction in self.means.items():
            noise = onto(torch.from_numpy(rng.standard_normal(tuple(direction.shape))), direction)
            away = scale * square_root(self.variances[name]) * noise
            drawn[name] = mean[name] + self.norms[name] * (direction + away)
        return drawn


@stored("DistilledSet")
class DistilledSet:
    """Kept on the client: the samples of whose label the ensemble is sure."""

    chosen: Tensor  # bool [n]
    labels: Tensor  # int64 [n], the most probable class
    judged: Tensor  # int64 [n], the labels that the client held

    @classmethod
    def of(cls, probabilities: Tensor, judged: Tensor, threshold: float) -> DistilledSet:
        """By the members' mean probabilities [n, K]: above ``threshold``."""
        most, labels = probabilities.max(1)
        return cls(most > threshold, labels, judged)
