"""A client trains alone, by a loss that withstands noisy labels, and infers its samples' labels."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from flnl.core.messages import ClientState, ClientTask
from flnl.core.model import Model
from flnl.core.parts import LossTerm
from flnl.core.payload import Payload
from flnl.core.step import FIRST, LOGITS, SECOND
from flnl.core.streams import torch_seed, torch_seeded
from flnl.core.training import Training
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.models.outputs import Pair
from flnl.parts.batches import Plain

PURPOSE = "training alone"


@dataclass(frozen=True)
class Learner:
    """Training on one client from the received model, by ``loss`` alone; its ``epochs`` count as rounds for the loss.

    ``networks=2``: a second network of the same kind, with new weights, is trained beside it, as Co-teaching needs.
    """

    loss: LossTerm
    networks: Literal[1, 2]
    training: Training

    def inferred(self, network: Model, task: ClientTask) -> Tensor:
        """The most probable class of each sample, int64 [n], by the mean of the networks' probabilities.

        A training that diverges ends with the model before.
        """
        assert isinstance(network, Network), "training needs a full Network, not only the Model protocol"
        job = LocalTraining(replace(self.training, epochs=1), Plain(), {"loss": self.loss}, None, {})
        with self._own(network, task) as own:
            params, state = own.params(), ClientState(labels=task.labels)
            for epoch in range(self.training.epochs):
                sent = replace(task.broadcast, params=params, extras=Payload(), round=epoch, stage=1, lengths=())
                alone = replace(task, broadcast=sent, state=state, visit=Payload(), seed=torch_seed(task.seed, PURPOSE))
                result = job(own, alone)
                if not result.finite or result.params is None:
                    break
                params, state = result.params, result.state
            names = (LOGITS,) if self.networks == 1 else (FIRST, SECOND)
            outputs = own.at(params).outputs(task.samples, names=names)
        return sum((outputs[name].double().softmax(1) for name in names), torch.zeros(())).argmax(1)

    @contextmanager
    def _own(self, network: Network, task: ClientTask) -> Iterator[Network]:
        """A network to train, which holds the received model; for a pair it is another than the run's."""
        if self.networks == 1:
            with network.apart():
                network.load(task.broadcast.params)
                yield network
            return
        first, second = (copy.deepcopy(network.module) for _ in range(2))
        first.load_state_dict(task.broadcast.params)
        with torch_seeded(torch_seed(task.seed, "second network"), torch.device("cpu")):
            _redraw(second)
        pair = Network(
            Pair(first, second), network.transform, network.num_classes, network.placement, network.asked_layout
        )
        pair.meter = network.meter
        yield pair


def _redraw(module: nn.Module) -> None:
    """Draw new weights of all layers, as torch draws them; the random numbers are drawn on the CPU."""
    for layer in module.modules():
        if callable(reset := getattr(layer, "reset_parameters", None)):
            drawn = copy.deepcopy(layer).cpu()
            drawn.reset_parameters()  # type: ignore[operator]
            del reset
            layer.load_state_dict(drawn.state_dict())
