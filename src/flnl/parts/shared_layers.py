"""Layers beside the network, which a loss term trains by itself and the server averages."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from flnl.core.messages import ClientTask, Clock, Fit, Gathered
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.parts import Exchange
from flnl.core.payload import Payload
from flnl.core.ranges import NonNegative
from flnl.core.stored import stored
from flnl.parts.messages import UsedSamples


@stored("SharedLayers")
class SharedLayers:
    """Sent to all clients: the mean of the layers that they have trained."""

    values: Mapping[str, Tensor]


@stored("TrainedLayers")
class TrainedLayers:
    """Sent to the server: the layers after training."""

    values: Mapping[str, Tensor]


@dataclass(frozen=True)
class Descent:
    """Stochastic gradient descent with momentum, as torch's SGD; its buffers begin at zero in each visit."""

    lr: NonNegative
    momentum: NonNegative
    weight_decay: NonNegative


@dataclass(frozen=True)
class Layers:
    """A term's state during one visit: layers that it trains, and the optimiser's buffers."""

    values: Mapping[str, Tensor]
    velocity: Mapping[str, Tensor]

    @classmethod
    def of(cls, values: Mapping[str, Tensor], network: Model, *more: Any) -> Self:
        """The layers where the network is, at rest; ``more`` are a subclass's further fields."""
        own = {name: onto(tensor, network.device, network.dtype) for name, tensor in values.items()}
        return cls(own, {name: torch.zeros_like(tensor) for name, tensor in own.items()}, *more)

    def after(self, gradients: Mapping[str, Tensor], descent: Descent) -> Self:
        """The layers after one step."""
        velocity = {
            name: descent.momentum * self.velocity[name] + gradients[name] + descent.weight_decay * value
            for name, value in self.values.items()
        }
        values = {name: v - descent.lr * velocity[name] for name, v in self.values.items()}
        return replace(self, values=values, velocity=velocity)


@dataclass(frozen=True)
class MeanOfLayers(Exchange):
    """The server averages the layers by the samples that clients have used; they go on from the mean.

    Until there is one, each term draws its layers by itself, equally on all clients.
    """

    sends: ClassVar[tuple[type, ...]] = (SharedLayers,)
    reports: ClassVar[tuple[type, ...]] = (TrainedLayers,)

    def broadcast(self, state: SharedLayers | None, clock: Clock) -> tuple[Any, ...]:
        return () if state is None else (state,)

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        layers = fit.state_of(Layers)
        if layers is None:
            return Payload(), Payload()
        return Payload(TrainedLayers({name: tensor.cpu() for name, tensor in layers.values.items()})), Payload()

    def gathered(self, state: SharedLayers | None, gathered: Gathered) -> SharedLayers | None:
        """The mean of what was sent, in float64; as it was if nothing was."""
        sent = [
            (layers.values, float(r.num_samples if used is None else used.count))
            for r in gathered.results
            for layers, used in [(r.reports.get(TrainedLayers), r.reports.get(UsedSamples))]
            if layers is not None
        ]
        total = sum(weight for _, weight in sent)
        if total <= 0:
            return state
        first = sent[0][0]
        sums = {name: torch.stack([weight * values[name].double() for values, weight in sent]).sum(0) for name in first}
        return SharedLayers({name: (sums[name] / total).to(first[name].dtype) for name in first})
