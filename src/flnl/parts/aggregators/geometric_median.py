"""The geometric median of the clients' models (RFA)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flnl.core.messages import Combined
from flnl.core.onto import onto
from flnl.core.payload import Params, Payload, is_learned
from flnl.core.ranges import NonNegative, Positive, PositiveCount
from flnl.numerics.roots import square_root
from flnl.parts.aggregators.median import median
from flnl.parts.aggregators.models import Models, OfModels, entries, weighted_mean


@dataclass(frozen=True)
class GeometricMedian(OfModels):
    """The model with the least weighted sum of distances to the clients' models (RFA, Pillutla et al. 2022).

    Smoothed Weiszfeld steps from the mean, or from the coordinate-wise median: ``β_k = α_k / max(ν, ‖z - Δ_k‖)``,
    ``z = Σ_k β_k Δ_k / Σ_k β_k`` with ``Δ_k = θ_k - θ_t`` and ``α_k = n_k / Σ n`` or 1/m. Steps end after
    ``iterations``, or once ``Σ_k α_k ‖z - Δ_k‖`` falls by less than ``tolerance`` of itself. Distances are those of all
    parameters as one vector (``over=model``), or each tensor has a median of its own (``over=tensor``). A round in
    which z is ``largest`` long or longer leaves the model as it is, as in the authors' program; then
    ``aggregation/fallback`` is 1.

    Running statistics of batch norm are averaged with the last β; with ``over=tensor`` with those of α. Integer buffers
    take the maximum. All models are in memory at once.
    """

    weights: Literal["samples", "uniform"]
    iterations: PositiveCount
    smoothing: Positive
    tolerance: NonNegative
    start: Literal["mean", "median"]
    over: Literal["model", "tensor"]
    largest: Positive | None

    def combine(self, params: Params, values: Iterable[Models], known: Payload) -> Combined:
        """The geometric median; ``params`` itself if there are no contributions."""
        blocks = [v for v in values if v.clients]
        if not blocks:
            return Combined(params)
        clients = [client for block in blocks for client in block.clients]
        counts = [float(n) if self.weights == "samples" else 1.0 for block in blocks for n in block.samples]
        shares = torch.tensor(counts, dtype=torch.float64) / sum(counts)
        learned = [name for name, p in params.items() if is_learned(name, p)]
        moved = {name: _moved(params[name], entries(blocks, name)) for name in learned}
        groups = [learned] if self.over == "model" else [[name] for name in learned]
        found: dict[str, Tensor] = {}
        last = shares
        for names in groups:
            last = self._median({name: moved[name] for name in names}, shares, found)
        length = math.sqrt(torch.stack([z.square().sum() for z in found.values()]).sum())
        if self.largest is not None and length >= self.largest:
            return Combined(params, facts={"fallback": 1.0})
        weights = (last if self.over == "model" else shares).tolist()
        combined = weighted_mean(params, blocks, weights)
        for name, z in found.items():
            combined[name] = (params[name].double() + z.reshape(params[name].shape)).to(params[name].dtype)
        return Combined(combined, dict(zip(clients, weights, strict=True)), {"fallback": 0.0})

    def _median(self, moved: dict[str, Tensor], shares: Tensor, found: dict[str, Tensor]) -> Tensor:
        """Put the median of ``moved``, float64 [m, d] by name, into ``found``; return the last weights [m]."""
        own = onto(shares, next(iter(moved.values())).device)
        if self.start == "mean":
            z = {name: own @ deltas for name, deltas in moved.items()}
        else:
            ones = torch.ones(len(shares), dtype=torch.int64)
            z = {name: median(deltas, ones) for name, deltas in moved.items()}
        distances = _distances(moved, z)
        before = float(own @ distances)
        weights = own
        for _ in range(self.iterations):
            weights = own / distances.clamp_min(self.smoothing)
            weights = weights / weights.sum()
            z = {name: weights @ deltas for name, deltas in moved.items()}
            distances = _distances(moved, z)
            now = float(own @ distances)
            if abs(before - now) < self.tolerance * now:
                break
            before = now
        found |= z
        return weights.cpu()


def _moved(received: Tensor, sent: Tensor) -> Tensor:
    """How far each client has moved a tensor, float64 [m, d]."""
    return (sent.double() - received.double()).reshape(len(sent), -1)


def _distances(moved: dict[str, Tensor], z: dict[str, Tensor]) -> Tensor:
    """``‖z - Δ_k‖`` [m] over all tensors."""
    return square_root(torch.stack([(deltas - z[name]).square().sum(1) for name, deltas in moved.items()]).sum(0))
