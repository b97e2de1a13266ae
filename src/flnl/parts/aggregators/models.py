"""The models of a block of clients, for aggregators that need the models themselves and not their sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from flnl.core.messages import ClientResult
from flnl.core.payload import Params
from flnl.numerics.averaging import models_of


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


def entries(blocks: Sequence[Models], name: str) -> Tensor:
    """All clients' entries of this name, [clients, ...], in a tensor of their own; ``blocks`` have clients."""
    return torch.cat([block.stacked[name] for block in blocks])
