"""The coordinate-wise median: the vectors, numpy's, weights by repetition, buffers, blocks."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
import pytest
import torch

from flnl.config import compose
from flnl.core.execution import BLOCK
from flnl.core.messages import ClientResult, ClientState
from flnl.core.payload import Params, Payload
from flnl.parts.aggregators import models as models_of_blocks
from flnl.parts.aggregators.median import Median
from tests.toys import equal
from tests.vectors.vectors import federated


def combined(
    models: Sequence[Params],
    samples: Sequence[int] | None = None,
    weights: Literal["uniform", "samples"] = "uniform",
    cut: int = BLOCK,
) -> Params:
    """The median of these models in blocks of ``cut``; the received model has other values."""
    median = Median(weights)
    received = {name: torch.full_like(p, 77) for name, p in models[0].items()}
    sizes = samples or [1] * len(models)
    results = [
        ClientResult(k, n, m, ClientState(), Payload(), 0.0, 1, True)
        for k, (m, n) in enumerate(zip(models, sizes, strict=True))
    ]
    blocks = [median.block(received, results[first : first + cut], Payload()) for first in range(0, len(results), cut)]
    return median.combine(received, blocks, Payload()).params


def matrix(rows: int, columns: int = 30) -> list[Params]:
    rng = torch.Generator().manual_seed(rows)
    return [{"w": torch.randn(columns, generator=rng, dtype=torch.float64)} for _ in range(rows)]


def points(name: str) -> list[Params]:
    return [{"w": torch.tensor(row)} for row in federated(name).inputs["points"]]


def test_vector_of_an_even_number():
    v = federated("median.even")
    assert combined(points("median.even"))["w"].tolist() == v.approx("median")


def test_the_lower_middle_value_is_not_the_median():
    """What ``torch.median`` gives."""
    v = federated("median.FNBENCH_lower")
    found = combined(points("median.FNBENCH_lower"))["w"].tolist()
    assert torch.stack([p["w"] for p in points("median.FNBENCH_lower")]).median(0).values.tolist() == v.approx(
        "lower_median"
    )
    assert all(ours != v.near(low) for ours, low in zip(found, v.expected["lower_median"], strict=True) if low != -1.0)
    assert found != v.approx("lower_median")


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 6, 10, 11])
@pytest.mark.parametrize("cut", [1, 2, 5])
def test_it_is_numpys(count: int, cut: int):
    models = matrix(count)
    wanted = np.median(np.stack([m["w"].numpy() for m in models]), axis=0)
    np.testing.assert_array_equal(combined(models, cut=cut)["w"].numpy(), wanted)


@pytest.mark.parametrize("samples", [[1, 2, 3], [5, 1, 1, 1], [2, 2, 3, 1], [3, 1, 4, 1, 5, 9], [1, 1, 1, 1], [4, 4]])
def test_weights_count_a_client_as_often_as_it_has_samples(samples: list[int]):
    models = matrix(len(samples))
    repeated = np.repeat(np.stack([m["w"].numpy() for m in models]), samples, axis=0)
    np.testing.assert_allclose(combined(models, samples, "samples")["w"].numpy(), np.median(repeated, axis=0))
    assert torch.equal(combined(models, samples, "uniform")["w"], combined(models)["w"])


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_relations_that_every_aggregator_keeps(weights: Literal["uniform", "samples"]):
    """As in ``compose.metamorphic``: permuted, shifted and scaled clients, scaled sizes, equal clients."""
    models, samples = matrix(8), [3, 1, 4, 1, 5, 9, 2, 6]
    found = combined(models, samples, weights)["w"]
    order = [5, 2, 7, 0, 1, 6, 3, 4]
    permuted = combined([models[i] for i in order], [samples[i] for i in order], weights)["w"]
    assert torch.equal(permuted, found)
    shift = torch.linspace(-3, 3, 30, dtype=torch.float64)
    shifted = combined([{"w": m["w"] + shift} for m in models], samples, weights)["w"]
    torch.testing.assert_close(shifted, found + shift, rtol=0, atol=1e-12)
    assert torch.equal(combined([{"w": 2 * m["w"]} for m in models], samples, weights)["w"], 2 * found)
    assert torch.equal(combined(models, [7 * n for n in samples], weights)["w"], found)
    assert torch.equal(combined([models[0]] * 8, samples, weights)["w"], models[0]["w"])


def test_two_of_five_may_be_anything():
    models = matrix(5)
    low, high = (torch.stack([m["w"] for m in models[:3]]).amin(0), torch.stack([m["w"] for m in models[:3]]).amax(0))
    for bad in (1e30, -1e30):
        found = combined([*models[:3], {"w": torch.full((30,), bad).double()}, {"w": torch.full((30,), bad).double()}])
        assert ((low <= found["w"]) & (found["w"] <= high)).all()


def test_whole_state_dicts():
    """Running statistics are treated as parameters are, counters take the maximum; shapes and types stay."""
    clients = [
        {
            "weight": torch.full((2, 3), w),
            "scale": torch.tensor(w),
            "running_var": torch.tensor([v]),
            "num_batches_tracked": torch.tensor(n),
        }
        for w, v, n in ((1.0, 0.5, 10), (4.0, 2.0, 30), (2.0, 8.0, 20), (100.0, 1.0, 5))
    ]
    found = combined(clients)
    assert found["weight"].tolist() == [[3.0] * 3] * 2
    assert found["scale"].item() == 3.0
    assert found["running_var"].tolist() == [1.5]
    assert found["num_batches_tracked"].item() == 30
    assert {n: (p.shape, p.dtype) for n, p in found.items()} == {n: (p.shape, p.dtype) for n, p in clients[0].items()}


def test_one_client_is_copied_exactly():
    alone = {"w": torch.randn(1000, generator=torch.Generator().manual_seed(0)) / 3, "n": torch.tensor(7)}
    assert equal(combined([alone], [37], "samples"), alone)


def test_nobody_contributed_leaves_the_model():
    received = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    median = Median("uniform")
    assert equal(median.combine(received, [], Payload()).params, received)
    assert equal(median.combine(received, [median.block(received, [], Payload())], Payload()).params, received)


def test_it_is_sorted_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch):
    models = matrix(6)
    whole = combined(models)["w"]
    monkeypatch.setattr(models_of_blocks, "COLUMNS", 7)
    assert torch.equal(combined(models)["w"], whole)


@pytest.mark.parametrize("protocol", ["cifar10", "cifar100", "clothing1m"])
def test_the_papers_values_are_the_defaults(protocol: str):
    found = compose.resolved(compose.load(["method=median", f"protocol={protocol}"]))
    assert (found["method"]["aggregator"]["weights"], found["train"]["lr"]) == ("uniform", 0.01)
