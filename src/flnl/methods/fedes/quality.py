"""From how critical a client's parameters are to how good its labels are, and what follows from it (FedES)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.ranges import Positive, Share
from flnl.numerics.mixture import two_gaussians
from flnl.numerics.scaling import quality

Array = NDArray[np.float64]
SignStatistic = Literal["mean", "gmm1d", "none"]
Indicator = Literal["emd_sign", "emd", "mean", "confidence", "sfedavg_phi", "fair_qhat", "oracle"]

SUBSAMPLE = 100_000


def sign_statistic(criticality: Tensor, how: SignStatistic = "mean") -> float:
    """The scalar μ of g [m] by which a client is above or below the server (FedES, Eq. 9).

    The paper fits a mixture of N + 1 components to N + 1 vectors, each of which then is its own component; what is
    left of it is the vector itself. ``mean`` is that of its entries. ``gmm1d`` is the larger mean of two Gaussians over
    log g, at evenly spaced entries, 100 000 at most. ``none`` is 0.
    """
    if how == "none":
        return 0.0
    if how == "mean":
        return float(criticality.sum(dtype=torch.float64)) / len(criticality)
    some = criticality[:: max(1, -(-len(criticality) // SUBSAMPLE))].double()
    found = two_gaussians(some.clamp_min(torch.finfo(torch.float64).tiny).log().numpy())
    return found.means[1] if found.split else found.means[0]


def signed(distance: float, client: float, server: float, how: SignStatistic = "mean") -> float:
    """``d = sgn(μ_n - μ_s) · EMD(g_n, g_s)``, 0 where the two agree (FedES, Eqs. 9, 10); unsigned under ``none``.

    The server's update is the mean of the clients', so its g is smaller than theirs on average: where clients differ
    at all, nearly every sign is positive.
    """
    return distance if how == "none" else distance * float(np.sign(client - server))


# ------------------------------------------------------------------------------------------------ other indicators


def quality_of_confidence(unsure: Sequence[float] | Array) -> Array:
    """Quality [N] from the share of each client's samples whose largest probability is below 0.7.

    The share as a z-score over the clients, clipped to [0, 1], is the noise; quality is 1 less it. The released
    program estimates by such shares in place of criticality; that clients at the mean or below are clean is our
    reading.
    """
    share = np.asarray(unsure, np.float64)
    deviation = share.std()
    z = (share - share.mean()) / deviation if deviation > 0 else np.zeros(len(share))
    return np.asarray(1 - np.clip(z, 0, 1), np.float64)


def unsure_share(logits: Tensor, confidence: Share = 0.7) -> float:
    """Share of logits' rows [n, K] whose largest probability is below ``confidence``."""
    return float((torch.softmax(logits.double(), dim=1).amax(1) < confidence).double().mean())


def quality_of_relevance(phi: Sequence[float] | Array, *, temperature: Positive = 1.0) -> Array:
    """Quality [N] from S-FedAvg's relevances φ [N]: its selection odds ``softmax(φ / T)``, scaled to [0, 1]."""
    scaled = np.asarray(phi, np.float64) / temperature
    odds = np.exp(scaled - scaled.max())
    return quality(odds / odds.sum())


# -------------------------------------------------------------------------------------------------------------- use


def aggregation_weights(counts: Sequence[float], rho: Sequence[float] | Array) -> Array:
    """``n_k ρ_k / Σ n_j ρ_j`` [N], noise-aware aggregation (FedES, Eq. 18); all 0 where nobody has any quality."""
    weight = np.asarray(counts, np.float64) * np.asarray(rho, np.float64)
    total = float(weight.sum())
    return np.asarray(weight / total) if total > 0 else weight


def of_quality(rho: Sequence[float] | Array, threshold: Share = 0.5) -> NDArray[np.bool_]:
    """Which clients [N] remain where those of quality below ``threshold`` are dropped (FedES, Table 5)."""
    return np.asarray(rho) >= threshold
