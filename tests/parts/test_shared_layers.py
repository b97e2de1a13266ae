"""The mean of layers that a loss term trains by itself; FedRG's tests hold their descent against torch's."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from flnl.core.messages import Broadcast, ClientResult, ClientState, Clock, Gathered
from flnl.core.payload import Payload
from flnl.parts.messages import UsedSamples
from flnl.parts.shared_layers import Layers, MeanOfLayers, SharedLayers, TrainedLayers
from tests.toys import Logits, federation, fitted, network, task


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_layers_are_averaged_by_the_samples_used() -> None:
    def result(client: int, value: float, reports: Payload) -> ClientResult:
        return ClientResult(client, 10 * (client + 1), None, ClientState(), reports, 0.0, 1, True)

    def mean(*results: ClientResult, before: SharedLayers | None = None) -> SharedLayers | None:
        sent = Broadcast(0, 1, {})
        return MeanOfLayers().gathered(before, Gathered(sent, results, None, Payload(), 1))

    layers = [TrainedLayers({"w": f64([float(k)])}) for k in (1, 5)]
    by_size = mean(*(result(k, 0, Payload(own)) for k, own in enumerate(layers)))
    assert by_size is not None
    assert by_size.values["w"].item() == pytest.approx((1 * 10 + 5 * 20) / 30)
    used = mean(*(result(k, 0, Payload(own, UsedSamples(3 * k))) for k, own in enumerate(layers)))
    assert used is not None
    assert used.values["w"].item() == 5.0, "the first has used none"
    assert mean(result(0, 0, Payload(layers[0], UsedSamples(0))), before=by_size) is by_size
    assert MeanOfLayers().broadcast(by_size, Clock(1, 1)) == (by_size,)
    assert MeanOfLayers().broadcast(None, Clock(0, 1)) == ()
    state = Layers({"w": f64([2.0])}, {"w": f64([0.0])})
    fit = replace(fitted({}), states={"term": state})
    module = Logits()
    net, work = network(module), task(module, federation([torch.zeros(3, 1, 1, 3)], [torch.arange(3)]).samples(0))
    assert MeanOfLayers().report(net, work, fit)[0].one(TrainedLayers).values["w"].item() == 2.0
    assert not len(MeanOfLayers().report(net, work, fitted({}))[0])
