"""The coordinate-wise median of the clients' models."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flnl.core.messages import ClientResult, Combined
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload


@dataclass(frozen=True)
class Models:
    """A block's contribution: its clients' models, stacked."""

    weights: list[int]
    stacked: Params  # by name, [clients, ...]


@dataclass(frozen=True)
class Median(Aggregator[Models]):
    """The coordinate-wise median (Yin et al. 2018).

    Of the values y_1 ≤ … ≤ y_m of m clients it takes the middle one, or the mean of the two middle ones if m is even.
    ``weights=samples`` counts client k n_k times. Batch norm's running statistics are treated like parameters; integer
    buffers take the maximum. All m models are in memory at once.
    """

    weights: Literal["uniform", "samples"]

    @property
    def by_samples(self) -> bool:
        """Under ``weights=samples``."""
        return self.weights == "samples"

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> Models:
        """The models of a few clients."""
        weights = [r.num_samples if self.weights == "samples" else 1 for r in results]
        models = [r.params for r in results if r.params is not None]
        assert len(models) == len(results), "results still have their models here"
        return Models(weights, {name: torch.stack([m[name] for m in models]) for name in params} if models else {})

    def combine(self, params: Params, values: Iterable[Models], known: Payload) -> Combined:
        """The median; ``params`` itself if there are no contributions."""
        blocks = [v for v in values if v.weights]
        if not blocks:
            return Combined(params)
        weights = torch.tensor([w for block in blocks for w in block.weights])
        combined: Params = {}
        for name, received in params.items():
            entries = torch.cat([block.stacked[name] for block in blocks])
            if received.is_floating_point():
                columns = entries.reshape(len(entries), -1).split(COLUMNS, dim=1)
                combined[name] = torch.cat([median(part, weights) for part in columns]).reshape(received.shape)
            else:
                combined[name] = entries.amax(0)
        return Combined(combined)


COLUMNS = 2**20
"""Number of coordinates to sort at once, which keeps the sort's memory small compared with the models."""


def median(values: Tensor, weights: Tensor) -> Tensor:
    """Medians [d] of ``values`` [m, d]; row i counts ``weights[i]`` times, int64 [m].

    >>> median(torch.tensor([[1.0], [2.0], [4.0], [100.0]]), torch.tensor([1, 1, 1, 1]))
    tensor([3.])
    """
    ordered, place = values.sort(0)
    weights = weights.to(values.device)
    reached, below, above = (torch.zeros_like(place[0]) for _ in range(3))
    for row in place:
        reached += 2 * weights[row]
        below += reached < weights.sum()  # number of rows before half of the weight is reached
        above += reached <= weights.sum()  # number of rows before it is exceeded
    middle = ordered.gather(0, below[None]).double() + ordered.gather(0, above[None]).double()
    return (middle[0] / 2).to(values.dtype)
