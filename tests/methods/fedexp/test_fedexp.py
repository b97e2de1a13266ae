"""FedExP: its factor against vectors and definition, what it leaves alone, what is evaluated."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch

from flnl.core.messages import ClientResult, ClientState, Combined
from flnl.core.optimizer import Adam
from flnl.core.parts import Aggregator, Setting
from flnl.core.payload import Params, Payload
from flnl.methods.fedexp.aggregator import Extrapolated
from flnl.methods.fedexp.server import LastTwo
from flnl.parts.aggregators.mean import Mean
from tests.toys import ONE_STEP, equal
from tests.vectors.vectors import federated

PLAIN = Extrapolated("samples", 0.001, "round")


def combined(
    part: Aggregator[Any], deltas: Sequence[Sequence[float]], samples: Sequence[int], cut: int = 5, at: float = 0.0
) -> Combined:
    """What the part makes of clients that have moved so far from a model of ``at``."""
    received: Params = {"w": torch.full((len(deltas[0]),), at, dtype=torch.float64)}
    results = [
        ClientResult(
            k, n, {"w": received["w"] + torch.tensor(d, dtype=torch.float64)}, ClientState(), Payload(), 0.0, 1, True
        )
        for k, (d, n) in enumerate(zip(deltas, samples, strict=True))
    ]
    blocks = [part.block(received, results[first : first + cut], Payload()) for first in range(0, len(results), cut)]
    return part.combine(received, blocks, Payload())


def test_another_optimiser_is_warned_of() -> None:
    setting = Setting({0: 3}, (4,), ONE_STEP, "method.aggregator")
    assert PLAIN.caution(setting) is None
    adam = replace(setting, training=replace(ONE_STEP, optimizer=Adam(0.9, 0.99, 1e-8)))
    assert str(PLAIN.caution(adam)).startswith("method.aggregator: FedExP is for SGD; steps of Adam")


@pytest.mark.parametrize(
    ("part", "samples", "name"),
    [
        (Extrapolated("samples", 0.001, "client"), (2, 3, 5), "eta_official"),
        (Extrapolated("samples", 0.001, "round"), (2, 3, 5), "eta_paper_weighted"),
        (Extrapolated("uniform", 0.001, "round"), (2, 3, 5), "eta_paper_uniform"),
    ],
)
@pytest.mark.parametrize("cut", [1, 2, 3])
def test_vector_of_the_factor(part: Extrapolated, samples: tuple[int, ...], name: str, cut: int) -> None:
    v = federated("fedexp.eta")
    found = combined(part, v.inputs["deltas"], samples, cut)
    assert found.facts["eta_g"] == pytest.approx(v.expected[name], abs=1e-8)
    mean = v.expected["delta_bar_uniform" if part.weights == "uniform" else "delta_bar"]
    np.testing.assert_allclose(found.params["w"], np.array(mean) * v.expected[name], atol=1e-7)


def test_changes_are_measured_from_the_model_of_this_round() -> None:
    """FNBench measures them from the first one, where all clients seem to agree."""
    v = federated("fedexp.FNBENCH_BUG")
    part = Extrapolated("uniform", 0.001, "round")
    found = combined(part, v.inputs["deltas"], (1, 1, 1), at=v.inputs["current_global"][0]).params["w"].tolist()
    assert found == v.approx("correct_result")
    assert found != v.approx("fnbench_result")


def test_running_statistics_are_averaged_and_not_extrapolated() -> None:
    v = federated("fedexp.bn_negative_variance")
    received: Params = {"w": torch.zeros(2, dtype=torch.float64), "running_var": torch.tensor(1.0)}
    spread = v.expected["required"]
    sent = [
        {"w": torch.tensor(w, dtype=torch.float64), "running_var": torch.tensor(spread)}
        for w in ([1.0, 0.1], [0.0, 1.0], [-0.8, 0.3], [0.4, -0.9])
    ]
    results = [ClientResult(k, 1, m, ClientState(), Payload(), 0.0, 1, True) for k, m in enumerate(sent)]
    found = PLAIN.combine(received, [PLAIN.block(received, results, Payload())], Payload())
    assert found.facts["eta_g"] > v.inputs["eta"]
    assert float(found.params["running_var"]) == pytest.approx(spread)
    assert v.expected["extrapolated"] < 0


@pytest.mark.parametrize("clients", [1, 2, 5, 8])
def test_clients_that_disagree_wholly_double_the_way_of_each(clients: int) -> None:
    """Orthogonal changes of one length: half as many times as there are clients. Equal ones: FedAvg, to the bit."""
    part = Extrapolated("uniform", 0.0, "round")
    ways = np.eye(clients).tolist()
    assert combined(part, ways, [1] * clients).facts["eta_g"] == pytest.approx(max(1.0, clients / 2))
    same = [[0.1, 0.7, -0.3]] * clients
    sizes = list(range(1, clients + 1))
    assert equal(combined(PLAIN, same, sizes, at=0.37).params, combined(Mean("samples"), same, sizes, at=0.37).params)


@pytest.mark.parametrize(("epsilon", "eta"), [(0.0, 1.0), (0.001, 1000.0)])
def test_ways_that_cancel(epsilon: float, eta: float) -> None:
    found = combined(Extrapolated("uniform", epsilon, "round"), [[1.0, 1.0], [-1.0, -1.0]], (1, 1))
    assert found.facts["eta_g"] == pytest.approx(eta)
    assert found.params["w"].tolist() == [0.0, 0.0]
    assert combined(Extrapolated("uniform", 0.0, "round"), [[0.0], [0.0]], (1, 1)).facts["eta_g"] == 1.0


@pytest.mark.parametrize("evaluate", ["mean", "last"])
def test_the_last_two_models_are_evaluated(evaluate: Literal["mean", "last"]) -> None:
    part = LastTwo(evaluate)
    first = {"w": torch.tensor([1.0]), "running_var": torch.tensor([2.0]), "n": torch.tensor(3)}
    second = {"w": torch.tensor([4.0]), "running_var": torch.tensor([1.0]), "n": torch.tensor(8)}
    params, state = part(first, second, [0], 1, part.init(first))
    assert equal(params, second)
    shown = part.shown(params, state)
    half = {"w": torch.tensor([2.5]), "running_var": torch.tensor([1.5]), "n": torch.tensor(8)}
    assert equal(shown, half if evaluate == "mean" else second)
