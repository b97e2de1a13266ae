"""The models of a block of clients, for aggregators that need the models themselves and not their sum."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flnl.core.messages import ClientResult
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload
from flnl.numerics.averaging import divided, models_of, weighted_sum


@dataclass(frozen=True)
class Models:
    """A block's contribution: its clients' models, stacked."""

    clients: list[int]
    samples: list[int]  # number of samples of each client
    stacked: Params  # by name, [clients, ...]; empty without clients

    @classmethod
    def of(cls, results: Sequence[ClientResult]) -> Models:
        """The models of a few clients."""
        models = models_of(results)
        names = models[0] if models else ()
        return cls(
            [r.client for r in results],
            [r.num_samples for r in results],
            {name: torch.stack([model[name] for model in models]) for name in names},
        )


class OfModels(Aggregator[Models]):
    """Base class of aggregators to which all models of a cohort are sent."""

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> Models:
        return Models.of(results)


def weighted_mean(params: Params, blocks: Sequence[Models], weights: Sequence[float]) -> Params:
    """The mean of all clients' models with these ``weights``, in the order of clients, as ``Mean`` computes it.

    Integer buffers take the maximum over all clients, also those of weight 0. Without any weight it is ``params``.
    """
    sums, left = [], list(weights)
    for block in blocks:
        own, left = left[: len(block.clients)], left[len(block.clients) :]
        models = [{name: p[i] for name, p in block.stacked.items()} for i in range(len(own))]
        sums.append(weighted_sum(params, models, own))
    return divided(params, sums)


COLUMNS = 2**20
"""Number of coordinates to sort at once, which keeps the sort's memory small compared with the models."""


def by_columns(params: Params, blocks: Sequence[Models], reduced: Callable[[Tensor], Tensor]) -> Params:
    """The model in which every coordinate is ``reduced`` by itself, from values [m, d] of all clients to [d].

    Integer buffers take the maximum. Without clients it is ``params``, the model that was sent.
    """
    held = [block for block in blocks if block.clients]
    if not held:
        return params
    combined: Params = {}
    for name, received in params.items():
        sent = entries(held, name)
        if received.is_floating_point():
            columns = sent.reshape(len(sent), -1).split(COLUMNS, dim=1)
            combined[name] = torch.cat([reduced(part) for part in columns]).reshape(received.shape)
        else:
            combined[name] = sent.amax(0)
    return combined


def entries(blocks: Sequence[Models], name: str) -> Tensor:
    """All clients' entries of this name, [clients, ...], in a tensor of their own; ``blocks`` have clients."""
    return torch.cat([block.stacked[name] for block in blocks])
