"""The coordinate-wise trimmed mean of the clients' models."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval
from torch import Tensor

from flnl.core.messages import Combined
from flnl.core.payload import Params, Payload
from flnl.numerics.rounding import whole
from flnl.parts.aggregators.models import Models, OfModels, by_columns


@dataclass(frozen=True)
class TrimmedMean(OfModels):
    """The coordinate-wise trimmed mean (Yin et al. 2018).

    Of the values of m clients, the ``⌊share · m⌋`` smallest and as many of the largest are left out, and the mean of
    the rest is taken; clients count the same. Batch norm's running statistics are treated like parameters; integer
    buffers take the maximum. All m models are in memory at once.
    """

    share: Annotated[float, Interval(ge=0, lt=0.5)]

    def combine(self, params: Params, values: Iterable[Models], known: Payload) -> Combined:
        """The trimmed mean; ``params`` itself if there are no contributions."""
        blocks = list(values)
        cut = whole(self.share * sum(len(block.clients) for block in blocks))
        return Combined(by_columns(params, blocks, lambda sent: _mean(sent, cut)), facts={"trimmed": 2.0 * cut})


def _mean(values: Tensor, cut: int) -> Tensor:
    """Means [d] of ``values`` [m, d] without the ``cut`` smallest and largest of each column, summed in float64."""
    kept = values.sort(0).values[cut : len(values) - cut] if cut else values
    total = torch.zeros_like(kept[0], dtype=torch.float64)
    for row in kept:  # in the order of clients where none is left out, as in the mean
        total += row
    return (total / len(kept)).to(values.dtype)
