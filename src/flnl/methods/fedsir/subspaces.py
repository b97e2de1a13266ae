"""Directions of a client's features, by class: how alike they are, and which labels those of others propose."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from typing import Annotated

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from torch import Tensor

from flnl.core.reported import PerClass, SamplesPerClass, Shaped
from flnl.core.stored import stored

log = logging.getLogger(__name__)
ENERGY = 10.0
"""How many times the singular values before the residual directions outweigh those from there on."""
STARTS, ITERATIONS, REGULARISATION = 30, 2000, 1e-6
"""Of the mixture that splits clients (FedSIR's program)."""


def alikeness(features: Tensor, labels: Tensor, fewest: int) -> tuple[float, float]:
    """Mean and mean square of ``|v_c · v_c'|`` over pairs of classes, with v_c the first right singular vector.

    Classes with fewer than ``fewest`` samples are left out, unless fewer than two are left. Both are NaN for a client
    with a single class.

    Args:
        features: [n, d], as they are: not centred.
        labels: int64 [n].
        fewest: see above.
    """
    counts = torch.bincount(labels)
    classes = (counts >= fewest).nonzero()[:, 0]
    if len(classes) < 2:
        classes = counts.nonzero()[:, 0]
    directions = [torch.linalg.svd(features[labels == c].double(), full_matrices=False).Vh[0] for c in classes]
    if len(directions) < 2:
        return float("nan"), float("nan")
    matrix = torch.stack(directions)
    apart = ~torch.eye(len(matrix), dtype=torch.bool)
    values = (matrix @ matrix.T).abs()[apart]
    return float(values.mean()), float(values.square().mean())


def noisy_by_alikeness(statistics: Sequence[tuple[float, float]], seed: int) -> NDArray[np.bool_]:
    """Which clients [N] are noisy, from their ``alikeness``: those of the Gaussian whose mean is larger in the first.

    Both columns are standardised by the deviation of all clients. Nobody is noisy if all are alike, or if all would be;
    nor is a client of which something is not finite.
    """
    values = np.asarray(statistics, np.float64).reshape(-1, 2)
    noisy, known = np.zeros(len(values), np.bool_), np.isfinite(values).all(1)
    points = values[known]
    if len(points) < 2 or (np.ptp(points, 0) <= 1e-9).all():
        return noisy
    spread = points.std(0)
    points = (points - points.mean(0)) / np.where(spread > 0, spread, 1.0)
    mixture = GaussianMixture(
        n_components=2, reg_covar=REGULARISATION, n_init=STARTS, max_iter=ITERATIONS, random_state=seed % 2**32
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        mixture.fit(points)
    noisy[known] = mixture.predict_proba(points)[:, mixture.means_[:, 0].argmin()] < 0.5
    if noisy[known].all():
        log.warning("no client is told to be clean, so all count as clean")
        noisy[:] = False
    return noisy


@stored("ClassSubspaces")
class ClassSubspaces:
    """Sent to the server by a clean client: its number of samples of each class, and what their features look like.

    Zero where there are none.
    """

    counts: SamplesPerClass  # int64 [K], samples with the label
    directions: Annotated[Tensor, Shaped("float", ("K", "d"))]  # the first right singular vectors
    # right singular vectors behind those that hold most of the energy:
    residuals: Annotated[Tensor, Shaped("float", ("K", "R", "d"))]
    gaps: PerClass  # float64 [K], (s_1 - s_2) / s_1 of the singular values
    shares: PerClass  # float64 [K], s_1 / Σ s

    @classmethod
    def of(cls, features: Tensor, labels: Tensor, classes: int, residuals: int) -> ClassSubspaces:
        """Those of features [n, d] with labels int64 [n].

        The residual directions begin behind the first k, of which the sum of singular values is at least ten times that
        of the others.
        """
        width = features.shape[1]
        made = cls(
            torch.bincount(labels, minlength=classes),
            torch.zeros(classes, width, dtype=features.dtype),
            torch.zeros(classes, residuals, width, dtype=features.dtype),
            torch.zeros(classes, dtype=torch.float64),
            torch.zeros(classes, dtype=torch.float64),
        )
        for c in labels.unique().tolist():
            found = torch.linalg.svd(features[labels == c].double(), full_matrices=False)
            values, sums = found.S, found.S.cumsum(0)
            if sums[-1] <= 0:
                continue
            behind = int((sums >= ENERGY * (sums[-1] - sums)).nonzero()[0, 0]) + 1
            rows = found.Vh[behind : behind + residuals]
            made.directions[c] = found.Vh[0].to(features.dtype)
            made.residuals[c, : len(rows)] = rows.to(features.dtype)
            made.gaps[c] = (values[0] - (values[1] if len(values) > 1 else 0)) / values[0]
            made.shares[c] = values[0] / sums[-1]
        return made


@stored("ClassConsensus")
class ClassConsensus:
    """Sent to noisy clients: the directions on which the clean ones agree."""

    directions: Tensor  # float64 [K, d]
    residuals: Tensor  # float64 [K, R, d]
    known: Tensor  # bool [K]; False for a class of which no clean client has residual directions
    strength: Tensor  # float64 [K], the first eigenvalue less the second of the mean of v vᵀ; 0 if nobody contributed


def consensus(sent: Mapping[int, ClassSubspaces], fewest: int, strength: float) -> ClassConsensus:
    """The eigenvectors of the weighted means of ``v vᵀ`` and ``Vᵀ V`` over clean clients, class by class.

    A client's weight is ``n · gap · share``; it contributes to a class of which it holds ``fewest`` samples. Where
    nobody does, or the mean's ``strength`` is too small, the client with most samples of the class counts alone.
    """
    each = list(sent.values())
    classes, rows, width = each[0].residuals.shape
    directions = torch.zeros(classes, width, dtype=torch.float64)
    residuals = torch.zeros(classes, rows, width, dtype=torch.float64)
    known, found = torch.zeros(classes, dtype=torch.bool), torch.zeros(classes, dtype=torch.float64)
    for c in range(classes):
        holders = [one for one in each if one.counts[c] > 0]
        if not holders:
            continue
        most = max(holders, key=lambda one: int(one.counts[c]))
        directions[c], residuals[c] = most.directions[c].double(), most.residuals[c].double()
        giving = [(one, _weight(one, c)) for one in holders if one.counts[c] >= fewest]
        total = sum(weight for _, weight in giving)
        if total > 0:
            roots = [(one, (weight / total) ** 0.5) for one, weight in giving]
            squares, axes = _eigen(torch.stack([root * one.directions[c].double() for one, root in roots]))
            found[c] = squares[0] - (squares[1] if len(squares) > 1 else 0)
            if found[c] >= strength:
                directions[c] = axes[0]
                squares, axes = _eigen(torch.cat([root * one.residuals[c].double() for one, root in roots]))
                axes = axes[squares > 1e-12 * squares[0].clamp_min(1e-300)][:rows]
                residuals[c] = torch.cat([axes, axes.new_zeros(rows - len(axes), width)])
        known[c] = residuals[c].any()
    return ClassConsensus(directions, residuals, known, found)


def _eigen(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors of the sum of ``r rᵀ`` over ``rows`` r, [m, d]; the largest first."""
    found = torch.linalg.svd(rows, full_matrices=False)
    return found.S.square(), found.Vh


def _weight(one: ClassSubspaces, c: int) -> float:
    return float(one.counts[c] * one.gaps[c] * one.shares[c])


def scores(features: Tensor, agreed: ClassConsensus) -> tuple[Tensor, Tensor]:
    """``|z/‖z‖ · v*_c|`` and ``‖V*_c z‖ / √R``, float64 [n, K] each, of features [n, d].

    The first is larger, the second smaller, the better a class fits. A class that is not known fits worst.
    """
    features = features.double()
    unit = features / features.norm(dim=1, keepdim=True).clamp_min(1e-12)
    along = (unit @ agreed.directions.T).abs()
    beside = torch.einsum("krd,nd->nkr", agreed.residuals, features).norm(dim=2) / agreed.residuals.shape[1] ** 0.5
    return along.where(agreed.known, -torch.inf), beside.where(agreed.known, torch.inf)


def relabelled(features: Tensor, labels: Tensor, agreed: ClassConsensus) -> tuple[Tensor, Tensor]:
    """Labels, int64 [n], and whether both scores propose one class, bool [n]; where they do not, the label stays."""
    along, beside = scores(features, agreed)
    first, second = along.argmax(1), beside.argmin(1)
    same = (first == second) & bool(agreed.known.any())
    return torch.where(same, first, labels), same
