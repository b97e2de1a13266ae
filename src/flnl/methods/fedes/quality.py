"""Estimates of clients' label quality from the criticality of their parameters, and their use (FedES)."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.ranges import Positive, Share
from flnl.numerics.mixture import two_gaussians
from flnl.numerics.scaling import quality
from flnl.parts.contribution import selection_probabilities

Array = NDArray[np.float64]
SignStatistic = Literal["mean", "gmm1d", "none"]
Indicator = Literal["emd_sign", "emd", "mean", "confidence", "sfedavg_phi", "fair_qhat", "oracle"]

SUBSAMPLE = 100_000


def sign_statistic(criticality: Tensor, how: SignStatistic = "mean") -> float:
    """The scalar μ of g [m] that is compared with the server's for the sign (FedES, Eq. 9).

    The paper fits a mixture of N + 1 components to N + 1 vectors, so that each vector is a component and the fit adds
    nothing to the vector itself. ``mean`` is the mean of its entries. ``gmm1d`` is the larger mean of two Gaussians
    fitted to log g, at up to 100 000 evenly spaced entries. ``none`` is 0.
    """
    if how == "none":
        return 0.0
    if how == "mean":
        return float(criticality.sum(dtype=torch.float64)) / len(criticality)
    some = criticality[:: max(1, -(-len(criticality) // SUBSAMPLE))].double()
    mixture = two_gaussians(some.clamp_min(torch.finfo(torch.float64).tiny).log().numpy())
    return mixture.means[1] if mixture.split else mixture.means[0]


def signed(distance: float, client: float, server: float, how: SignStatistic = "mean") -> float:
    """``d = sgn(μ_n - μ_s) · EMD(g_n, g_s)``, 0 if both μ are equal (FedES, Eqs. 9, 10); unsigned under ``none``.

    The server's update is the mean of the clients' updates, so its g is smaller than theirs on average: unless all
    clients agree, nearly every sign is positive.
    """
    return distance if how == "none" else distance * float(np.sign(client - server))


# ------------------------------------------------------------------------------------------------ other indicators


def quality_of_confidence(unsure: Sequence[float] | Array) -> Array:
    """Quality [N] from the share of each client's samples whose largest probability is below 0.7.

    The noise level is the share's z-score over the clients, clipped to [0, 1]; quality is 1 minus the noise level. The
    released program uses such shares instead of criticality; that clients at or below the mean count as clean is our
    interpretation.
    """
    share = np.asarray(unsure, np.float64)
    deviation = share.std()
    z = (share - share.mean()) / deviation if deviation > 0 else np.zeros(len(share))
    return np.asarray(1 - np.clip(z, 0, 1), np.float64)


def unsure_share(logits: Tensor, confidence: Share = 0.7) -> float:
    """Share of the rows of ``logits`` [n, K] whose largest probability is below ``confidence``, or is undefined."""
    sure = torch.softmax(logits.double(), dim=1).amax(1) >= confidence
    return float((~sure).double().mean())


def quality_of_relevance(phi: Sequence[float] | Array, *, temperature: Positive = 1.0) -> Array:
    """Quality [N] from S-FedAvg's relevances φ [N]: selection probabilities ``softmax(φ / T)``, scaled to [0, 1]."""
    return quality(selection_probabilities(phi, temperature=temperature))


# -------------------------------------------------------------------------------------------------------------- use


def of_quality(rho: Sequence[float] | Array, threshold: Share = 0.5) -> NDArray[np.bool_]:
    """Mask [N] of the clients whose quality is at least ``threshold`` (FedES, Table 5)."""
    return np.asarray(rho) >= threshold
