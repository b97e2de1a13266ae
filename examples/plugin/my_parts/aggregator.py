"""The coordinate-wise mean of the inner values."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

import torch
from annotated_types import Interval

from flnl.core.messages import ClientResult, Combined
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload
from flnl.numerics.rounding import whole


@dataclass(frozen=True)
class InnerMean(Aggregator[list[Params]]):
    """In every coordinate, the mean without the ``⌊β m⌋`` smallest and largest of m values (Yin et al., ICML 2018).

    Integer buffers take the maximum. All models of a cohort are in memory at once.
    """

    share: Annotated[float, Interval(ge=0, lt=0.5)]  # β

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> list[Params]:
        """The models of a few clients; runs in the worker that trained them."""
        return [result.params for result in results if result.params is not None]

    def combine(self, params: Params, values: Iterable[list[Params]], known: Payload) -> Combined:
        """The mean; ``params`` itself if there are no models."""
        models = [model for block in values for model in block]
        if not models:
            return Combined(params)
        cut = whole(self.share * len(models))
        combined: Params = {}
        for name, received in params.items():
            sent = torch.stack([model[name] for model in models])
            if received.is_floating_point():
                combined[name] = sent.sort(0).values[cut : len(models) - cut].mean(0)
            else:
                combined[name] = sent.amax(0)
        return Combined(combined)
