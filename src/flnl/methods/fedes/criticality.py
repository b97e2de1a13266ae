"""Criticality of parameters, and the distance between two distributions of it (FedES).

The criticality of a parameter is ``g = |(w' - w) w|``, where w is the received value and w' the value after local
training. It needs only the clients' models. g may have tens of millions of entries: it is computed tensor by tensor, in
the model's precision, and summed in float64.
"""

from collections.abc import Iterator
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.payload import Params, is_learned
from flnl.core.ranges import Positive, PositiveCount

Scope = Literal["dims_2_4", "all"]
Distance = Literal["exact", "quantiles", "subset"]

CHUNK = 2**20
QUANTILES = 10_000
SUBSET = 100_000


def in_scope(tensor: Tensor, scope: Scope = "dims_2_4") -> bool:
    """Whether a parameter is compared and ranked: linear and convolution weights, or (``all``) every one.

    Biases and batch norm's parameters have one dimension.
    """
    return tensor.is_floating_point() and (scope == "all" or tensor.dim() in (2, 4))


def compared(model: Params, scope: Scope = "dims_2_4") -> dict[str, Tensor]:
    """The parameters of a model that are in scope, by name and in its order."""
    return {name: w for name, w in model.items() if is_learned(name, w) and in_scope(w, scope)}


def criticalities(
    received: Params, trained: Params, *, scope: Scope = "dims_2_4", steps: Positive = 1
) -> Iterator[tuple[str, Tensor]]:
    """``g = |(w' - w) w|`` for each parameter in scope, by name and in the order of ``received`` (FedES, Eqs. 7 and 8).

    With a client's model this is g_n; with the sample-weighted mean of the models it is g_s. Dividing by ``steps``, the
    number of local steps, makes clients with different numbers of samples comparable; the paper does not divide.
    """
    for name, before in compared(received, scope).items():
        yield name, ((trained[name] - before) * before).abs() / steps


def flattened(received: Params, trained: Params, *, scope: Scope = "dims_2_4", steps: Positive = 1) -> Tensor:
    """All criticalities [m], tensor after tensor.

    Raises:
        ValueError: if no tensor is in scope.
    """
    parts = [g.flatten() for _, g in criticalities(received, trained, scope=scope, steps=steps)]
    if not parts:
        raise ValueError(f"the model has no parameter in scope {scope}: no linear or convolution weights to compare")
    return torch.cat(parts)


# -------------------------------------------------------------------------------------------------------- distance


def shared_subset(size: int, rng: np.random.Generator, count: PositiveCount = SUBSET) -> Tensor:
    """Positions, int64 [min(count, size)], drawn from ``size`` entries once and shared by all clients and the server.

    In ascending order, without repetition.
    """
    return torch.from_numpy(np.sort(rng.choice(size, min(count, size), replace=False)))


def profile(
    values: Tensor, *, how: Distance = "exact", subset: Tensor | None = None, quantiles: PositiveCount = QUANTILES
) -> Tensor:
    """The part of ``values`` [m] to compare, in ascending order.

    ``exact``: all of them. ``quantiles``: the quantiles at levels (i + 1/2) / Q. ``subset``: those at the positions
    ``subset``. Profiles of the same kind have the same length.

    Raises:
        ValueError: if ``how`` is ``subset`` and ``subset`` is missing.
    """
    if how == "subset":
        if subset is None:
            raise ValueError("how=subset needs the shared positions: give subset")
        values = values[subset]
    ordered = values.sort().values
    if how != "quantiles":
        return ordered
    levels = ((torch.arange(quantiles, dtype=torch.float64) + 0.5) / quantiles * len(ordered)).long()
    return ordered[levels.clamp_max(len(ordered) - 1)]


def emd(first: Tensor, second: Tensor) -> float:
    """Earth mover's distance between two sorted profiles of the same length, as returned by ``profile``.

    In one dimension the optimal plan moves the i-th smallest to the i-th smallest: the mean of ``|a_(i) - b_(i)|``.

    Raises:
        ValueError: if the lengths differ or are 0; ``emd_weighted`` compares samples of different lengths.
    """
    if len(first) != len(second) or len(first) == 0:
        raise ValueError(f"profiles of {len(first)} and {len(second)} values cannot be matched one to one")
    total = sum(
        float((a.double() - b.double()).abs().sum())
        for a, b in zip(first.split(CHUNK), second.split(CHUNK), strict=True)
    )
    return total / len(first)


def emd_weighted(
    first: Tensor, second: Tensor, first_mass: Tensor | None = None, second_mass: Tensor | None = None
) -> float:
    """Earth mover's distance between values [m] and [k] in any order, with masses; None for equal masses.

    The masses of each side are normalised to sum to 1.

    Raises:
        ValueError: if a side has no values, no mass, negative mass or non-finite values.
    """
    import ot  # the import takes seconds, and few runs need it

    (x, p), (y, q) = _side(first, first_mass), _side(second, second_mass)
    # POT squares the distance by default; in float32, its sums lose a tenth at ten million values.
    return float(ot.emd2_1d(x, y, p, q, metric="euclidean"))


def _side(values: Tensor, mass: Tensor | None) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x = values.double().numpy()
    p = np.ones(len(x)) if mass is None else mass.double().numpy()
    if len(x) == 0 or not np.isfinite(x).all() or (p < 0).any() or not p.sum() > 0:
        raise ValueError("both sides need finite values, and masses that are non-negative and not all 0")
    return x, p / p.sum()
