"""FOCUS: its vector, credibilities from the definition, what clients send, models without a finite loss."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from flnl.core.findings import EstimatedQuality
from flnl.core.messages import Broadcast, ClientResult, ClientState, Gathered, ServerSamples
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload, size_in_bytes
from flnl.methods.focus.aggregator import CredibilityMean
from flnl.methods.focus.exchange import Credibilities, Credibility, GlobalLoss, credibilities
from flnl.numerics.losses import sample_losses
from flnl.parts.aggregators.mean import Mean
from tests.toys import equal, fitted, mlp, network, random_federation, task
from tests.vectors.vectors import federated


def results(lost: list[float], samples: list[int], models: list[float]) -> list[ClientResult]:
    return [
        ClientResult(k, n, {"w": torch.tensor([m])}, ClientState(), Payload(GlobalLoss(loss)), 0.0, 1, True)
        for k, (loss, n, m) in enumerate(zip(lost, samples, models, strict=True))
    ]


def after(part: Credibility, sent: list[ClientResult], scores: list[float], clients: int = 3):
    def score(params: Params) -> tuple[float, float]:
        return 0.0, scores[[r.params for r in sent].index(params)]

    gathered = Gathered(Broadcast(0, 1, {}), sent, None, Payload(ServerSamples(score)), 1)
    return part.gathered(part.init(clients, {}), gathered)


def test_vector_of_the_weights() -> None:
    v = federated("focus.weights")
    part = Credibility(v.inputs["alpha"])
    sent = results(v.inputs["LL"], v.inputs["n"], [1.0, 2.0, 3.0])
    state = after(part, sent, v.inputs["LS"])
    assert state.losses.tolist() == v.approx("E")
    (known,) = part.known(state)
    assert list(known.value.values()) == v.approx("C")
    mean, received = CredibilityMean(), {"w": torch.zeros(1)}
    found = mean.combine(received, [mean.block(received, sent, Payload(known))], Payload(known))
    total = sum(found.weights.values())
    assert [weight / total for weight in found.weights.values()] == v.approx("W")
    assert float(found.params["w"]) == pytest.approx(np.dot(v.expected["W"], [1.0, 2.0, 3.0]))
    (quality,) = part.findings(state, {}, Payload())
    assert isinstance(quality, EstimatedQuality)
    assert quality.values.tolist() == pytest.approx([1.0, (5.3 - 2.2) / (5.3 - 1.7), 0.0])


@pytest.mark.parametrize("clients", [1, 2, 6])
def test_clients_alike_are_fedavg(clients: int) -> None:
    losses = torch.full((clients,), 700.0, dtype=torch.float64)  # too large for exp
    found = credibilities(losses, 3.0)
    np.testing.assert_allclose(found, 1.0 if clients == 1 else 1 - 1 / clients)
    sent = results([1.0] * clients, list(range(1, clients + 1)), [0.1 * k for k in range(clients)])
    known, received = Payload(Credibilities(dict(enumerate(found.tolist())))), {"w": torch.zeros(1)}
    parts: list[Aggregator[Any]] = [CredibilityMean(), Mean("samples")]
    first, second = (p.combine(received, [p.block(received, sent, known)], known).params for p in parts)
    np.testing.assert_allclose(first["w"], second["w"], rtol=1e-6)


def test_a_model_without_a_finite_loss_counts_for_nothing() -> None:
    found = credibilities(torch.tensor([1.0, math.nan, math.inf, 2.0], dtype=torch.float64), 1.0)
    assert found.tolist() == pytest.approx([1 - 1 / (1 + math.e), 0.0, 0.0, 1 - math.e / (1 + math.e)])
    assert credibilities(torch.tensor([math.nan, 4.0], dtype=torch.float64), 1.0).tolist() == [0.0, 1.0]
    part = Credibility(1.0)
    state = after(part, results([0.5, 0.5, 0.5], [4, 4, 4], [1.0, 2.0, 3.0]), [0.5, 1.5, math.nan], clients=4)
    assert state.losses.tolist() == pytest.approx([1.0, 2.0, math.inf, math.nan], nan_ok=True)
    (quality,) = part.findings(state, {}, Payload())
    assert isinstance(quality, EstimatedQuality)
    assert quality.values.tolist() == [1.0, 0.0, 0.0, 0.5]
    known, received = Payload(Credibilities({0: 0.0})), {"w": torch.zeros(1)}
    sent = results([1.0], [4], [5.0])
    mean = CredibilityMean()
    assert equal(mean.combine(received, [mean.block(received, sent, known)], known).params, received)


def test_clients_send_the_received_models_loss_on_their_labels() -> None:
    module = mlp(4, 3)
    net, one = network(module), task(module, random_federation((5, 7)).samples(1))
    expected = float(sample_losses(net.logits(one.samples), one.labels).mean())
    net.received(one)
    moved = {name: p + 1 for name, p in net.params().items()}
    net.load(moved)
    sent, kept = Credibility(1.0).report(net, one, fitted(moved))
    assert sent.one(GlobalLoss).value == pytest.approx(expected)
    assert size_in_bytes(sent) == 8
    assert not len(kept)
