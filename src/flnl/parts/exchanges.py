"""Exchanges that any method can use."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from flnl.core.messages import ClientTask, Clock, Gathered, Oracle
from flnl.core.parts import Exchange
from flnl.core.payload import Params
from flnl.core.stored import stored


@stored("OwnNoiseRate")
class OwnNoiseRate:
    """Sent to a client: the share of its labels that are wrong."""

    value: Tensor  # float64 scalar in [0, 1]


@dataclass(frozen=True)
class TrueNoiseRates(Exchange):
    """Tells each client its true share of wrong labels. This is ground truth, so a run with it is an upper bound.

    Terms that are given the noise rate then use the client's own in its place. They have it after the first round, in
    which they leave nothing out.
    """

    sends: ClassVar[tuple[type, ...]] = (OwnNoiseRate,)
    aid: ClassVar[tuple[type, ...]] = (Oracle,)

    def init(self, clients: int, params: Params) -> Tensor:
        """No rates yet: NaN, float64 [clients]."""
        return torch.full((clients,), torch.nan, dtype=torch.float64)

    def send(self, state: Tensor, client: int, clock: Clock) -> tuple[OwnNoiseRate, ...]:
        return () if bool(state[client].isnan()) else (OwnNoiseRate(state[client].clone()),)

    def gathered(self, state: Tensor, gathered: Gathered) -> Tensor:
        quality: Mapping[int, float] = gathered.aid.one(Oracle).quality
        rates = state.clone()
        for client, right in quality.items():
            rates[client] = 1 - right
        return rates


def own_noise_rate(task: ClientTask) -> float | None:
    """The true noise rate that the client was sent; None if it was not."""
    sent = task.broadcast.extras.get(OwnNoiseRate)
    return None if sent is None else float(sent.value)
