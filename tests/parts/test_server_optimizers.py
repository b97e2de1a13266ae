"""Server optimisers: vectors, torch's own optimisers on the same gradients, buffers, restarts."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from flnl.core.findings import scalars
from flnl.core.payload import Params, Payload
from flnl.parts.server_optimizers import Adaptive, AdaptiveState, Momentum
from tests.vectors.vectors import Entry, field

ADAM = Adaptive("adam", 0.1, beta1=0.9, beta2=0.99, tau=0.001, v_init="tau2", bias_correction=False)


def path(part: Any, v: Entry) -> list[list[float]]:
    """The models after each round of a vector, whose changes come from a cohort."""
    params: Params = {"w": torch.tensor(v.inputs["w0"], dtype=torch.float64)}
    state, models = part.init(params), []
    for delta in v.inputs["deltas"]:
        combined = {"w": params["w"] + torch.tensor(delta, dtype=torch.float64)}
        params, state = part(params, combined, [0, 1], 4, state)
        models.append(params["w"].tolist())
    return models


def held(found: list[list[float]], v: Entry) -> None:
    np.testing.assert_allclose(found, v.expected["w"], atol=v.absolute)


def adaptive(v: Entry, rule: Any) -> Adaptive:
    given: Any = {name: v.inputs[name] for name in ("beta1", "beta2", "tau", "bias_correction") if name in v.inputs}
    start: Any = "zero" if v.inputs.get("v_init") == 0 else "tau2"
    return replace(ADAM, rule=rule, rate=v.inputs["eta"], v_init=start, **given)


@pytest.mark.parametrize("name", ["fedavgm.three_rounds", "fedavgm.eta", "fedavgm.nesterov"])
def test_vectors_of_momentum(name: str) -> None:
    v = field(name)
    held(path(Momentum(v.inputs["beta"], v.inputs["eta"], v.inputs.get("nesterov", False)), v), v)


@pytest.mark.parametrize(
    ("name", "rule"),
    [
        ("fedadam.three_rounds", "adam"),
        ("fedadam.bias_corrected", "adam"),
        ("fedopt.tau_large", "adam"),
        ("fedyogi.three_rounds", "yogi"),
        ("fedadagrad.three_rounds", "adagrad"),
    ],
)
def test_vectors_of_adaptive_steps(name: str, rule: str) -> None:
    held(path(adaptive(field(name), rule), field(name)), field(name))


def test_yogi_leaves_v_where_it_equals_the_square() -> None:
    v = field("fedyogi.sign_zero")
    part = replace(ADAM, rule="yogi", beta2=v.inputs["beta2"])
    params = {"w": torch.zeros(2, dtype=torch.float64)}
    change = torch.tensor(v.inputs["delta"], dtype=torch.float64)
    square = torch.tensor([change[0].square(), v.inputs["v"][1]], dtype=torch.float64)  # 0.2², which is not 0.04
    assert square.tolist() == v.near(v.inputs["v"])
    state = AdaptiveState(params, {"w": square}, 3)
    _, after = part(params, {"w": change}, [0], 2, state)
    assert after.v["w"].tolist() == v.approx("v")
    assert after.steps == 4


@pytest.mark.parametrize("part", [ADAM, Momentum(0.9, 1.0, nesterov=False)], ids=str)
def test_running_statistics_and_counters_are_those_of_the_combined_model(part: Any) -> None:
    v = field("fedopt.bn_buffers")
    sent, expected = v.inputs["sent"], v.expected
    share = np.array(v.inputs["n"]) / sum(v.inputs["n"])
    params = {n: torch.tensor(x, dtype=torch.int64 if isinstance(x, int) else torch.float64) for n, x in sent.items()}
    mean = {name: float(share @ [client[name] for client in v.inputs["clients"]]) for name in sent}
    combined = {name: torch.tensor(value, dtype=params[name].dtype) for name, value in mean.items()}
    combined["num_batches_tracked"] = torch.tensor(25)
    moved, _ = part(params, combined, [0, 1], 2, part.init(params))
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert float(moved[name]) == v.near(expected[name])
    if isinstance(part, Adaptive):
        assert float(moved["w"]) == v.near(expected["w"])
        assert expected["WRONG_running_var_if_adam_applied"] < 0


def test_momentum_is_torchs_on_the_negative_change() -> None:
    rng = np.random.default_rng(3)
    for nesterov in (False, True):
        part, weight = Momentum(0.8, 0.3, nesterov), torch.nn.Parameter(torch.zeros(5, dtype=torch.float64))
        torchs = torch.optim.SGD([weight], lr=0.3, momentum=0.8, nesterov=nesterov)
        params: Params = {"w": torch.zeros(5, dtype=torch.float64)}
        state = part.init(params)
        for _ in range(6):
            change = torch.from_numpy(rng.normal(size=5))
            params, state = part(params, {"w": params["w"] + change}, [0], 1, state)
            weight.grad = -change
            torchs.step()
        np.testing.assert_allclose(params["w"], weight.detach(), rtol=1e-10)


def test_without_momentum_the_combined_model_keeps_its_bits() -> None:
    params, combined = {"w": torch.tensor([0.1, 3e7])}, {"w": torch.tensor([0.3, 3e7 + 2])}
    part = Momentum(0.0, 1.0, nesterov=False)
    moved, _ = part(params, combined, [0], 1, part.init(params))
    assert torch.equal(moved["w"], combined["w"])


def test_what_is_recorded_of_an_adaptive_server() -> None:
    part = replace(ADAM, v_init="zero", beta2=0.0, beta1=0.5)
    params = {"w": torch.zeros(2), "running_var": torch.ones(2)}
    _, state = part(params, {"w": torch.tensor([0.3, -0.1]), "running_var": torch.ones(2)}, [0], 1, part.init(params))
    found = scalars(part.findings(state, {}, Payload()))
    assert found == {"server_root_v": pytest.approx(0.2), "server_m_over_root_v": pytest.approx(0.5)}
    assert part.findings(None, {}, Payload()) == ()
