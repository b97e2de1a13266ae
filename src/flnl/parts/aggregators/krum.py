"""Krum and Multi-Krum: the models that are nearest to most others."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from annotated_types import Interval
from torch import Tensor

from flnl.core.messages import Combined
from flnl.core.onto import onto
from flnl.core.payload import Params, Payload, is_learned
from flnl.core.ranges import PositiveCount
from flnl.numerics.rounding import whole
from flnl.parts.aggregators.models import Models, OfModels, entries, weighted_mean


@dataclass(frozen=True)
class Krum(OfModels):
    """The model, or the mean of the ``chosen`` models, nearest to most others (Blanchard et al. 2017).

    Of n clients, ``f = ⌊faulty · n⌋`` are taken to be faulty, at most ``⌊(n - 3) / 2⌋``, for which the paper asks
    n ≥ 2f + 3. A client's score is the sum of its ``n - f - 2`` smallest squared distances to others, over all
    parameters; those with the lowest scores are chosen, of equal ones the first. ``chosen`` None takes n - f, as
    Pillutla et al. do (Multi-Krum); the paper's guarantee is for up to n - f - 2.

    Batch norm's running statistics are those of the chosen clients and count in no distance; integer buffers take the
    maximum over all clients. All n models are in memory at once.
    """

    faulty: Annotated[float, Interval(ge=0, lt=0.5)]
    chosen: PositiveCount | None
    weights: Literal["uniform", "samples"]

    def combine(self, params: Params, values: Iterable[Models], known: Payload) -> Combined:
        """The mean of the chosen models; ``params`` itself if there are no contributions."""
        blocks = [v for v in values if v.clients]
        if not blocks:
            return Combined(params)
        clients = [client for block in blocks for client in block.clients]
        faulty = max(0, min(whole(self.faulty * len(clients)), (len(clients) - 3) // 2))
        order = scores(squared_distances(params, blocks), faulty).sort(stable=True).indices.tolist()
        kept = {*order[: self.chosen or max(1, len(clients) - faulty)]}
        samples = [n for block in blocks for n in block.samples]
        weights = [float(k in kept) * (n if self.weights == "samples" else 1) for k, n in enumerate(samples)]
        combined = weighted_mean(params, blocks, weights)
        facts = {"faulty": float(faulty), "rejected": float(len(clients) - len(kept))}
        return Combined(combined, dict(zip(clients, weights, strict=True)), facts)


def squared_distances(params: Params, blocks: Sequence[Models]) -> Tensor:
    """``‖θ_i - θ_j‖²`` of all pairs of clients over the parameters, float64 [n, n].

    Of differences to ``params``, so that what models have in common cancels nothing.
    """
    total: Tensor = torch.zeros(())
    for name, received in params.items():
        if is_learned(name, received):
            sent = entries(blocks, name)
            moved = (sent.double() - received.double()).reshape(len(sent), -1)
            total = onto(total, moved.device) + torch.stack([(moved - own).square().sum(1) for own in moved])
    return total.cpu()


def scores(distances: Tensor, faulty: int) -> Tensor:
    """Each client's sum of its ``n - faulty - 2`` smallest squared ``distances`` [n, n] to others; at least of one.

    >>> scores(torch.tensor([[0.0, 1.0, 9.0], [1.0, 0.0, 4.0], [9.0, 4.0, 0.0]]), 0)
    tensor([1., 1., 4.])
    """
    others = distances.clone().fill_diagonal_(torch.inf).sort(1).values
    nearest = others[:, : max(1, len(distances) - faulty - 2)]
    return nearest.where(nearest.isfinite(), 0.0).sum(1)  # one client alone has no other
