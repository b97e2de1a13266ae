"""Fixed prototypes of the classes: a regular simplex in the space of features, turned at random."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from flnl.core.onto import onto
from flnl.core.ranges import Seed
from flnl.core.streams import of_part, stream
from flnl.models.outputs import why_features_stay
from flnl.numerics.roots import square_root

Rotation = Literal["stream", "released"]
HEAD = "head.weight"
"""How the name of the last layer's weights [K, d] ends."""


def head_of(params: Mapping[str, Tensor]) -> str | None:
    """The name of the last layer's weights; None if the network has none of this name."""
    return next((name for name, p in params.items() if f".{name}".endswith(f".{HEAD}") and p.dim() == 2), None)


def why_no_prototypes(network: nn.Module) -> str | None:
    """Why the features of a network cannot go to prototypes; None if they can."""
    params = dict(network.named_parameters())
    name = head_of(params)
    if name is None:
        return "prototypes need a network whose last layer is called head"
    if (why := why_features_stay(network)) is not None:
        return f"prototypes attract features while these are trained, and {why}"
    classes, width = params[name].shape
    if width >= classes - 1:
        return None
    return f"{classes} prototypes need at least {classes - 1} features, and this network has {width}: widen it"


def frame(classes: int, width: int) -> NDArray[np.float64]:
    """``classes`` unit vectors with inner products -1/(K-1), on the last K-1 axes of R^d; float64 [K, d].

    Class k has the first k of these axes behind it: it is at 0 on them, and all later classes agree on its own.

    >>> frame(3, 2).round(3).tolist()
    [[-0.866, -0.5], [0.866, -0.5], [0.0, 1.0]]
    """
    found = np.zeros((classes, width))
    for last in range(1, classes):  # the simplex of `last` + 1 classes is that of `last` ones, lowered, and a peak
        axis = width - classes + last
        found[:last, :axis] *= np.sqrt(1 - 1 / last**2)
        found[:last, axis] = -1 / last
        found[last, axis] = 1
    return found


@lru_cache(maxsize=8)
def turned(classes: int, width: int, seed: int, rotation: Rotation) -> Tensor:
    """The frame times an orthogonal matrix: Q of a matrix of uniform draws; float64 [K, d]."""
    if rotation == "released":
        draws = np.random.RandomState(seed).rand(width, width)
    else:
        draws = stream(seed, of_part("prototypes")).random((width, width))
    return torch.from_numpy(frame(classes, width) @ np.linalg.qr(draws)[0])


@dataclass(frozen=True)
class Prototypes:
    """Everybody can compute the prototypes, from the seed alone.

    ``rotation=released`` draws by numpy's ``RandomState(seed)``, as the authors' program does.
    """

    seed: Seed
    rotation: Rotation

    def of(self, params: Mapping[str, Tensor]) -> Tensor:
        """The prototypes for a model with these parameters [K, d], in their type and place."""
        name = head_of(params)
        assert name is not None, "refused otherwise"
        classes, width = params[name].shape
        return onto(turned(classes, width, self.seed, self.rotation), params[name])


def attainable(prototypes: Tensor) -> Tensor:
    """The largest cosine that features without negative entries can have to each prototype [K, d]; [K].

    It is the norm of the prototype's positive part.
    """
    found: Tensor = torch.linalg.vector_norm(prototypes.clamp_min(0), dim=1)
    return found


def cosines(features: Tensor, prototypes: Tensor) -> Tensor:
    """Of features [n, d] and prototypes [K, d], which have norm 1; [n, K]."""
    found: Tensor = F.normalize(features, dim=1) @ prototypes.T
    return found


def slerp(one: Tensor, other: Tensor, share: float | Tensor) -> Tensor:
    """The point of the arc between unit vectors [B, d] that is nearer to ``one``, the larger its ``share`` in [0, 1].

    ``[sin(λω) a + sin((1-λ)ω) b] / sin ω`` with ω the angle; a where they are equal, and where they are opposite, so
    that there are many arcs, the one with the larger share. ``share`` is of all rows or of each [B].
    """
    # a number is written by the device itself, which need not be waited for
    share = share.to(one) if isinstance(share, Tensor) else one.new_full((), share)
    share = share[:, None] if share.dim() == 1 else share
    dot = (one * other).sum(1, keepdim=True).clamp(-1, 1)
    near, far = dot > 1 - 1e-6, dot < -1 + 1e-6
    dot = torch.where(near | far, 0.0, dot)
    angle = torch.atan2(square_root((1 - dot) * (1 + dot)), dot)
    arc = (torch.sin(share * angle) * one + torch.sin((1 - share) * angle) * other) / torch.sin(angle)
    return torch.where(near, one, torch.where(far, torch.where(share >= 0.5, one, other), arc))
