"""FedNova: its vectors, the length of steps against torch's own optimiser, what it refuses."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flnl.core.messages import ClientResult, ClientState, Combined
from flnl.core.optimizer import Adam
from flnl.core.parts import Aggregator, GradientTransform, Part, Setting
from flnl.core.payload import Params, Payload
from flnl.core.training import Training
from flnl.methods.fednova.aggregator import NormalisedMean
from flnl.methods.fednova.exchange import LocalSteps, StepLengths, length
from flnl.parts.aggregators.mean import Mean
from flnl.parts.losses.proximal import Proximal
from flnl.parts.server_optimizers import Momentum
from tests.toys import ONE_STEP, equal
from tests.vectors.vectors import Entry, field


def client_model(start: torch.Tensor, v: Entry, k: int) -> torch.Tensor:
    """The quadratic's minimisation by torch's SGD, from the definition."""
    w = torch.nn.Parameter(start.clone())
    optimizer = torch.optim.SGD([w], lr=v.inputs["lr"])
    a, c = (torch.tensor(v.inputs[name][k], dtype=torch.float64) for name in "ac")
    for _ in range(v.inputs["steps"][k]):
        optimizer.zero_grad()
        loss = 0.5 * (a * (w - c).square()).sum() + v.inputs.get("mu", 0.0) / 2 * (w - start).square().sum()
        loss.backward()
        optimizer.step()
    return w.detach()


def round_of(part: Aggregator[Any], start: torch.Tensor, v: Entry, cut: int = 5) -> Combined:
    received: Params = {"w": start, "running_mean": torch.zeros(1), "n": torch.tensor(0)}
    results = []
    for k, (steps, count) in enumerate(zip(v.inputs["steps"], v.inputs["n"], strict=True)):
        sent = {"w": client_model(start, v, k), "running_mean": torch.tensor([float(k)]), "n": torch.tensor(k)}
        told = LocalSteps(steps, length(steps, v.inputs["lr"], 0.0, v.inputs.get("mu", 0.0)))
        results.append(ClientResult(k, int(count), sent, ClientState(), Payload(told), 0.0, steps, True))
    blocks = [part.block(received, results[first : first + cut], Payload()) for first in range(0, len(results), cut)]
    return part.combine(received, blocks, Payload())


@pytest.mark.parametrize("name", ["fednova.sgd", "fednova.prox", "fednova.prox_official_tau_eff"])
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_vectors(name: str, cut: int) -> None:
    v = field(name)
    start = torch.tensor(v.inputs["w0"], dtype=torch.float64)
    part = NormalisedMean("steps" if "official" in name else "length")
    found = round_of(part, start, v, cut)
    assert found.params["w"].tolist() == v.approx("w")
    assert found.facts["tau_eff"] == v.approx("tau_eff")
    lengths = [length(t, v.inputs["lr"], 0.0, v.inputs.get("mu", 0.0)) for t in v.inputs["steps"]]
    assert lengths == v.approx("a_norm")
    mean = round_of(Mean("samples"), start, v, cut).params
    assert mean["w"].tolist() == v.approx("w_fedavg")
    assert torch.equal(found.params["running_mean"], mean["running_mean"])
    assert found.params["n"] == 2


def test_vector_of_lengths() -> None:
    v = field("fednova.normaliser")
    found = [length(int(steps), lr, momentum, mu) for momentum, mu, lr, steps in v.inputs["rows"]]
    assert found == v.approx("a")


@pytest.mark.parametrize(("momentum", "mu"), [(0.0, 0.0), (0.9, 0.0), (0.5, 0.3), (0.0, 2.0)])
def test_a_length_is_the_way_of_a_weight_whose_gradient_is_one(momentum: float, mu: float) -> None:
    weight = torch.nn.Parameter(torch.zeros((), dtype=torch.float64))
    optimizer = torch.optim.SGD([weight], lr=0.2, momentum=momentum)
    for steps in range(1, 9):
        optimizer.zero_grad()
        (weight + mu / 2 * weight.square()).backward()
        optimizer.step()
        assert length(steps, 0.2, momentum, mu) == pytest.approx(float(-weight.detach()) / 0.2, rel=1e-12)
    assert length(0, 0.2, momentum, mu) == 0


def test_momentum_of_the_server_goes_beside_it() -> None:
    v = field("fednova.server_momentum")
    params: Params = {"w": torch.tensor(v.inputs["w0"], dtype=torch.float64)}
    server = Momentum(v.inputs["gmf"], 1.0, nesterov=False)
    state, path = server.init(params), []
    for _ in range(v.inputs["rounds"]):
        combined = {"w": round_of(NormalisedMean("length"), params["w"], v).params["w"]}
        params, state = server(params, combined, [0, 1, 2], 3, state)
        path.append(params["w"].tolist())
    np.testing.assert_allclose(path, v.expected["w"], atol=v.absolute)


def test_equal_lengths_are_fedavg_and_a_client_without_a_step_counts_for_nothing() -> None:
    v = field("fednova.sgd")
    alike = replace(v, inputs={**v.inputs, "steps": [4, 4, 4]})
    start = torch.tensor(v.inputs["w0"], dtype=torch.float64)
    part, mean = NormalisedMean("length"), Mean("samples")
    assert equal(round_of(part, start, alike).params, round_of(mean, start, alike).params)
    idle = replace(v, inputs={**v.inputs, "steps": [0, 5, 9]})
    without = replace(v, inputs={**v.inputs, **{key: v.inputs[key][1:] for key in ("steps", "n", "a", "c")}})
    assert equal({"w": round_of(part, start, idle).params["w"]}, {"w": round_of(part, start, without).params["w"]})


class Halved(GradientTransform):
    """One that changes updates."""

    def update(self, before: Any, after: Any, gradients: Any, step: Any) -> Any:
        return before


def test_what_it_refuses() -> None:
    net, mean = torch.nn.Linear(1, 1), NormalisedMean("length")

    def reason(training: Training, *stage: Part) -> str | None:
        return mean.refuses(net, stage, Setting({0: 3}, (4,), training, "method.aggregator"))

    plain, heavy = StepLengths(0.0, 0.0), StepLengths(0.9, 0.0)
    assert reason(ONE_STEP, plain) is None
    assert "add method/exchange=[fednova_steps]" in str(reason(ONE_STEP))
    adam = replace(ONE_STEP, optimizer=Adam(0.9, 0.99, 1e-8))
    assert "train/optimizer=adam they have no such sum" in str(reason(adam, plain))
    momentum = replace(ONE_STEP, momentum=0.9)
    assert "clients train with 0.9" in str(reason(momentum, plain))
    assert "keep_momentum=true" in str(reason(replace(momentum, keep_momentum=True), heavy))
    assert "visit_cosine=true" in str(reason(replace(momentum, visit_cosine=True), heavy))
    assert reason(momentum, heavy) is None
    near = Proximal(0.1, "squared_half")
    assert "step_lengths.mu=0, but the proximal term has 0.1" in str(reason(ONE_STEP, plain, near))
    assert "step_lengths.mu=0.1, but the proximal term has 0;" in str(reason(ONE_STEP, StepLengths(0.0, 0.1)))
    assert reason(ONE_STEP, StepLengths(0.0, 0.1), near) is None
    assert "form=squared_half" in str(reason(ONE_STEP, StepLengths(0.0, 0.1), Proximal(0.1, "norm")))
    steep = Proximal(4.0, "squared_half")
    assert "train.lr times mu is 2" in str(reason(ONE_STEP, StepLengths(0.0, 4.0), steep))
    assert "changes updates" in str(reason(ONE_STEP, plain, Halved()))
