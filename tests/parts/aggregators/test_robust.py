"""Robust aggregators: vectors, definitions, what peers do otherwise, blocks, buffers, relations that all keep."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from flnl.core.execution import BLOCK
from flnl.core.messages import ClientResult, ClientState, Combined
from flnl.core.parts import Aggregator
from flnl.core.payload import Params, Payload
from flnl.parts.aggregators.geometric_median import GeometricMedian
from flnl.parts.aggregators.krum import Krum, scores, squared_distances
from flnl.parts.aggregators.mean import Mean
from flnl.parts.aggregators.models import Models
from flnl.parts.aggregators.trimmed_mean import TrimmedMean
from tests.vectors.vectors import federated

RFA = GeometricMedian("samples", 4, 1e-5, 1e-6, "mean", "model", None)
LONG = GeometricMedian("uniform", 5000, 1e-9, 0.0, "median", "model", None)
ALL = {
    "trimmed_mean": TrimmedMean(0.2),
    "krum": Krum(0.3, 1, "uniform"),
    "multi_krum": Krum(0.3, None, "uniform"),
    "rfa": RFA,
    "rfa_from_the_median": GeometricMedian("uniform", 30, 1e-5, 0.0, "median", "tensor", None),
}


def combined(
    part: Aggregator[Any], models: Sequence[Params], samples: Sequence[int] | None = None, cut: int = BLOCK
) -> Combined:
    """What the part makes of these models in blocks of ``cut``; the received model is one of zeros."""
    received = {name: torch.zeros_like(p) for name, p in models[0].items()}
    results = [
        ClientResult(k, n, m, ClientState(), Payload(), 0.0, 1, True)
        for k, (m, n) in enumerate(zip(models, samples or [1] * len(models), strict=True))
    ]
    blocks = [part.block(received, results[first : first + cut], Payload()) for first in range(0, len(results), cut)]
    return part.combine(received, blocks, Payload())


def points(name: str, dtype: torch.dtype = torch.float64) -> list[Params]:
    return [{"w": torch.tensor(row, dtype=dtype)} for row in federated(name).inputs["points"]]


def matrix(rows: int, columns: int = 30, seed: int = 0) -> list[Params]:
    rng = torch.Generator().manual_seed(100 * rows + seed)
    return [
        {
            "w": torch.randn(columns, generator=rng, dtype=torch.float64),
            "bn.running_var": torch.rand(2, generator=rng, dtype=torch.float64),
            "bn.num_batches_tracked": torch.tensor(7 * k + 1),
        }
        for k in range(rows)
    ]


# ---------------------------------------------------------------------------------------------------- trimmed mean


def test_trimmed_mean_vectors() -> None:
    v = federated("trimmed_mean")
    found = combined(TrimmedMean(v.inputs["beta"]), points("trimmed_mean"))
    assert found.params["w"].tolist() == v.approx("trimmed_mean")
    assert found.facts == {"trimmed": 2.0 * v.expected["k"]}
    v = federated("trimmed_mean.k0")
    assert combined(TrimmedMean(0.1), points("trimmed_mean.k0")).params["w"].tolist() == v.approx("required")
    v = federated("trimmed_mean.FNBENCH_not_trimmed")
    ours = combined(TrimmedMean(0.2), points("trimmed_mean.FNBENCH_not_trimmed")).params["w"].tolist()
    assert ours != v.approx("fnbench_gives")


@pytest.mark.parametrize(("share", "clients", "cut"), [(0.3, 10, 3), (0.1, 9, 0), (0.49, 7, 3), (0.2, 5, 1)])
def test_the_trimmed_mean_is_that_of_what_is_left(share: float, clients: int, cut: int) -> None:
    models = matrix(clients)
    for name in ("w", "bn.running_var"):
        values = np.sort(np.stack([m[name].numpy() for m in models]), axis=0)[cut : clients - cut]
        found = combined(TrimmedMean(share), models, cut=3).params
        np.testing.assert_allclose(found[name].numpy(), values.mean(0), rtol=1e-12)
        assert found["bn.num_batches_tracked"] == 7 * (clients - 1) + 1


# ------------------------------------------------------------------------------------------------------------ Krum


def test_krum_vectors() -> None:
    v = federated("krum")
    models = points("krum")
    received = {"w": torch.full((2,), 3.0, dtype=torch.float64)}
    distances = squared_distances(received, [_block(models[:3]), _block(models[3:])])
    assert scores(distances, v.inputs["f"]).tolist() == v.approx("scores")
    found = combined(Krum(2 / 7, 1, "uniform"), models, cut=2)
    assert found.params["w"].tolist() == v.approx("krum")
    assert [k for k, w in found.weights.items() if w] == [v.expected["chosen"]]
    v = federated("multikrum")
    found = combined(Krum(2 / 7, None, "uniform"), models, cut=3)
    assert found.params["w"].tolist() == v.approx("average")
    assert [k for k, w in found.weights.items() if w] == v.expected["selected"]


def test_krum_is_not_what_peers_compute() -> None:
    """They add up distances to all clients, and count the number of batches as a coordinate."""
    v = federated("krum.FNBENCH_BUG")
    ours = combined(Krum(2 / 7, 1, "uniform"), points("krum.FNBENCH_BUG")).params["w"].tolist()
    assert ours != v.approx("fnbench_gives")
    v = federated("krum.counters")
    models = [
        {**model, "bn.num_batches_tracked": torch.tensor(count)}
        for model, count in zip(points("krum.counters"), v.inputs["counters"], strict=True)
    ]
    found = combined(Krum(0.2, 1, "uniform"), models)
    assert [k for k, w in found.weights.items() if w] == [v.expected["chosen_params_only"]]
    assert found.params["bn.num_batches_tracked"] == max(v.inputs["counters"])


def test_krum_keeps_its_digits_far_from_zero() -> None:
    """Of models that agree but for the last digits, as late in training: their norms cancel in float32."""
    base = torch.full((1000,), 30.0)
    models = [{"w": base + 1e-3 * k * torch.ones(1000)} for k in (0, 1, 2, 3, 20)]
    received = {"w": base.clone()}
    results = [ClientResult(k, 1, m, ClientState(), Payload(), 0.0, 1, True) for k, m in enumerate(models)]
    part = Krum(0.2, 1, "uniform")
    found = part.combine(received, [part.block(received, results, Payload())], Payload())
    assert [k for k, w in found.weights.items() if w] in ([1], [2])


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 10])
def test_krum_with_few_clients(clients: int) -> None:
    models = matrix(clients)
    one = combined(Krum(0.45, 1, "uniform"), models)
    chosen = [k for k, w in one.weights.items() if w]
    assert len(chosen) == 1
    assert torch.equal(one.params["w"], models[chosen[0]]["w"])
    assert torch.equal(one.params["bn.running_var"], models[chosen[0]]["bn.running_var"])
    kept = [w for w in combined(Krum(0.45, None, "samples"), models, [5] * clients).weights.values() if w]
    assert kept == [5.0] * (clients - max(0, min(int(0.45 * clients), (clients - 3) // 2)))


def _block(models: Sequence[Params]) -> Models:
    return Models.of([ClientResult(k, 1, m, ClientState(), Payload(), 0.0, 1, True) for k, m in enumerate(models)])


# ------------------------------------------------------------------------------------------------------------- RFA


def test_rfa_vectors() -> None:
    v = federated("rfa.uniform")
    models = points("rfa.uniform")
    assert combined(RFA, models).params["w"].tolist() == v.approx("default_call_maxiter4_ftol1e_6")
    assert combined(LONG, models).params["w"].tolist() == v.approx("scipy_geometric_median")
    v = federated("rfa.whole_vector")
    models = [{name: torch.tensor(p, dtype=torch.float64) for name, p in m.items()} for m in v.inputs["clients"]]
    whole = combined(LONG, models).params
    assert [*whole["a"].tolist(), *whole["b"].tolist()] == v.approx("whole_vector")
    peers = combined(GeometricMedian("uniform", 10, 1e-5, 0.0, "mean", "tensor", None), models).params
    assert [*peers["a"].tolist(), *peers["b"].tolist()] == v.approx("fnbench_per_tensor")


@pytest.mark.parametrize("weights", [[1, 1, 1, 1, 1], [1, 5, 2, 9, 4]])
def test_in_one_dimension_it_is_the_weighted_median(weights: list[int]) -> None:
    values = [3.0, -1.0, 8.0, 2.5, 40.0]
    part = GeometricMedian("samples", 5000, 1e-12, 0.0, "mean", "model", None)
    found = combined(part, [{"w": torch.tensor([v], dtype=torch.float64)} for v in values], weights)
    repeated = np.median(np.repeat(values, weights))
    assert float(found.params["w"]) == pytest.approx(repeated, abs=1e-3)


def test_a_huge_model_needs_more_steps_or_a_better_start() -> None:
    """Four steps from the mean do not withstand it; a step beyond the limit is not taken at all."""
    models = [*matrix(9), {"w": torch.full((30,), 1e6, dtype=torch.float64), **_of_batch_norm()}]
    sound = torch.stack([m["w"] for m in models[:9]]).mean(0)
    assert float((combined(RFA, models).params["w"] - sound).norm()) > 50
    assert float((combined(LONG, models).params["w"] - sound).norm()) < 3
    limited = combined(GeometricMedian("samples", 1, 1e-5, 1e-6, "mean", "model", 1000.0), models[-1:])
    assert limited.facts == {"fallback": 1.0}
    assert not limited.params["w"].any()


def _of_batch_norm() -> Params:
    return {"bn.running_var": torch.ones(2, dtype=torch.float64), "bn.num_batches_tracked": torch.tensor(3)}


# ---------------------------------------------------------------------------------------------------- what all keep


@pytest.mark.parametrize("name", ALL)
def test_relations_that_every_aggregator_keeps(name: str) -> None:
    """Vector compose.metamorphic: order, shift, scale, sizes alike; cuts; clients that agree; nobody."""
    part, models, sizes = ALL[name], matrix(8), [3, 9, 4, 7, 5, 6, 8, 2]
    found = combined(part, models, sizes).params
    order = [5, 2, 7, 0, 3, 6, 1, 4]
    near(combined(part, [models[k] for k in order], [sizes[k] for k in order]).params, found)
    near(combined(part, models, [10 * n for n in sizes]).params, found)
    for cut in (1, 3):
        near(combined(part, models, sizes, cut).params, found)
    moved = [{**m, "w": m["w"] + 4.0} for m in models]
    np.testing.assert_allclose(combined(part, moved, sizes).params["w"], found["w"] + 4.0, atol=1e-6)
    same = combined(part, [models[2]] * 8, sizes).params
    np.testing.assert_allclose(same["w"], models[2]["w"], rtol=1e-12)
    received = {name: torch.zeros_like(p) for name, p in models[0].items()}
    assert part.combine(received, [part.block(received, [], Payload())], Payload()).params is received


def near(one: Params, other: Params) -> None:
    for name, value in one.items():
        np.testing.assert_allclose(value, other[name], atol=1e-9, err_msg=name)


@pytest.mark.parametrize("name", [name for name in ALL if name != "rfa"])
@pytest.mark.parametrize("faulty", [(0, 1), (3, 8), (4, 9)], ids=str)
def test_two_clients_of_ten_that_send_anything_move_it_little(name: str, faulty: tuple[int, int]) -> None:
    """The mean goes with them; the default RFA does not withstand this, as shown above."""
    models = matrix(10)
    for k, value in zip(faulty, (1e5, -3e5), strict=True):
        models[k]["w"] = torch.full((30,), value, dtype=torch.float64)
    sound = torch.stack([m["w"] for k, m in enumerate(models) if k not in faulty])
    found = combined(ALL[name], models).params["w"]
    assert bool(((found >= sound.min(0).values - 1e-6) & (found <= sound.max(0).values + 1e-6)).all())
    assert float(combined(Mean("uniform"), models).params["w"].abs().min()) > 1e4
