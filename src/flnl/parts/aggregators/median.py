"""The coordinate-wise median of the clients' models."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from flnl.core.messages import Combined
from flnl.core.onto import onto
from flnl.core.payload import Params, Payload
from flnl.parts.aggregators.models import Models, OfModels, by_columns


@dataclass(frozen=True)
class Median(OfModels):
    """The coordinate-wise median (Yin et al. 2018).

    Of the values y_1 ≤ … ≤ y_m of m clients it takes the middle one, or the mean of the two middle ones if m is even.
    ``weights=samples`` counts client k n_k times. Batch norm's running statistics are treated like parameters; integer
    buffers take the maximum. All m models are in memory at once.
    """

    weights: Literal["uniform", "samples"]

    def combine(self, params: Params, values: Iterable[Models], known: Payload) -> Combined:
        """The median; ``params`` itself if there are no contributions."""
        blocks = list(values)
        weights = torch.tensor([n if self.weights == "samples" else 1 for block in blocks for n in block.samples])
        return Combined(by_columns(params, blocks, lambda sent: median(sent, weights)))


def median(values: Tensor, weights: Tensor) -> Tensor:
    """Medians [d] of ``values`` [m, d]; row i counts ``weights[i]`` times, int64 [m].

    >>> median(torch.tensor([[1.0], [2.0], [4.0], [100.0]]), torch.tensor([1, 1, 1, 1]))
    tensor([3.])
    """
    ordered, place = values.sort(0)
    weights = onto(weights, values.device)
    reached, below, above = (torch.zeros_like(place[0]) for _ in range(3))
    for row in place:
        reached += 2 * weights[row]
        below += reached < weights.sum()  # number of rows before half of the weight is reached
        above += reached <= weights.sum()  # number of rows before it is exceeded
    middle = ordered.gather(0, below[None]).double() + ordered.gather(0, above[None]).double()
    return (middle[0] / 2).to(values.dtype)
