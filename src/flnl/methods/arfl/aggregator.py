"""ARFL's aggregator: clients count by how near their parameters are to a robust line through all clients'."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flnl.core.messages import Combined
from flnl.core.payload import Params, Payload, is_learned
from flnl.core.ranges import Positive, Share
from flnl.methods.arfl.residuals import judged
from flnl.parts.aggregators.models import Models, OfModels, entries, weighted_mean

ENTRIES = 2**21
"""Number of entries, over all clients, to judge at once, which keeps memory small compared with the models."""


@dataclass(frozen=True)
class ResidualReweighting(OfModels):
    """``Σ_i W_i ŵ_i`` with ``W_i ∝ (conf_i / max conf)²``, of client i's corrected model ŵ_i (Fu et al. 2019).

    For each parameter, a repeated-median line is fitted through the clients' values in ascending order. A value's
    weight ω falls with its residual; a value with ω below ``delta`` is replaced by the line's. conf_i adds up ω over
    all parameters, each times the standard deviation of ω over the clients. Numbers of samples do not count.

    Running statistics of batch norm are averaged with the same W_i, or with ``distance_buffers`` judged and corrected
    like parameters (the authors' program); integer buffers take the maximum. With fewer than three clients, or if all
    clients have the same confidence 0 because they agree, the weights are undefined: then this is the mean weighted by
    samples, and ``aggregation/fallback`` is 1 in the round's metrics. ``aggregation/corrected`` is the share of values
    that were replaced. All models of the cohort are in memory twice.
    """

    lam: Positive
    delta: Share
    distance_buffers: bool

    def combine(self, params: Params, values: Iterable[Models], known: Payload) -> Combined:
        """The weighted mean of the corrected models; ``params`` itself if there are no contributions."""
        blocks = [v for v in values if v.clients]
        if not blocks:
            return Combined(params)
        clients = [client for block in blocks for client in block.clients]
        if len(clients) < 3:
            return _by_samples(params, blocks)
        sent = {name: entries(blocks, name) for name in params}
        confidence = torch.zeros(len(clients), dtype=torch.float64, device=next(iter(sent.values())).device)
        replaced = total = 0
        for name, received in params.items():
            if self._counts(name, received):
                more, corrected = self._correct(sent[name])
                confidence += more
                replaced, total = replaced + corrected, total + sent[name].numel()
        largest = float(confidence.max())
        if largest == 0:
            return _by_samples(params, blocks)
        weights = (confidence / largest).square()
        weights /= weights.sum()
        combined = {
            name: _mean(p, weights).to(p.dtype) if p.is_floating_point() else p.amax(0) for name, p in sent.items()
        }
        facts = {"fallback": 0.0, "corrected": replaced / total}
        return Combined(combined, dict(zip(clients, weights.tolist(), strict=True)), facts)

    def _counts(self, name: str, received: Tensor) -> bool:
        """Whether an entry of the model is judged and corrected."""
        return is_learned(name, received) or (self.distance_buffers and received.is_floating_point())

    def _correct(self, sent: Tensor) -> tuple[Tensor, int]:
        """Replace values [m, ...] that are far from their line; return the confidence [m] and how many there were."""
        flat = sent.view(len(sent), -1)
        confidence, replaced = torch.zeros(len(sent), dtype=torch.float64, device=sent.device), 0
        for values in flat.split(max(ENTRIES // len(sent), 1), dim=1):
            verdict = judged(values.double(), self.lam)
            far = verdict.weights < self.delta
            values.copy_(torch.where(far, verdict.line.to(values.dtype), values))
            confidence += verdict.confidence
            replaced += int(far.sum())
        return confidence, replaced


def _mean(sent: Tensor, weights: Tensor) -> Tensor:
    """``Σ_i W_i w_i`` in float64, without the first dimension."""
    mean = torch.zeros_like(sent[0], dtype=torch.float64)
    for values, weight in zip(sent, weights.tolist(), strict=True):
        mean.add_(values.double(), alpha=weight)
    return mean


def _by_samples(params: Params, blocks: Sequence[Models]) -> Combined:
    """The mean weighted by samples, with the bits of ``Mean``."""
    weights = {c: float(n) for block in blocks for c, n in zip(block.clients, block.samples, strict=True)}
    mean = weighted_mean(params, blocks, list(weights.values()))
    return Combined(mean, weights, {"fallback": 1.0, "corrected": 0.0})
