"""ARFL: its vectors, a loop over coordinates in numpy, whole models, and where its weights are undefined."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from flnl.config import compose
from flnl.core.execution import BLOCK
from flnl.core.messages import ClientResult, ClientState, Combined
from flnl.core.payload import Params, Payload
from flnl.methods.arfl import aggregator as arfl
from flnl.methods.arfl.aggregator import ResidualReweighting
from flnl.methods.arfl.residuals import judged, repeated_median
from flnl.parts.aggregators.mean import Mean
from tests.properties.runs import rounds, run, same_params
from tests.registry import BY_NAME, NORMED, Entry
from tests.toys import equal
from tests.vectors.vectors import federated

PAPER = ResidualReweighting(2.0, 0.1, distance_buffers=False)
Array = NDArray[np.float64]


def combined(
    models: Sequence[Params], samples: Sequence[int] | None = None, part: Any = PAPER, cut: int = BLOCK
) -> Combined:
    """What the aggregator makes of these models in blocks of ``cut``; the received model has other values."""
    received = {name: torch.full_like(p, 77) for name, p in models[0].items()}
    sizes = samples or [1] * len(models)
    results = [
        ClientResult(k, n, m, ClientState(), Payload(), 0.0, 1, True)
        for k, (m, n) in enumerate(zip(models, sizes, strict=True))
    ]
    blocks = [part.block(received, results[first : first + cut], Payload()) for first in range(0, len(results), cut)]
    result = part.combine(received, blocks, Payload())
    assert isinstance(result, Combined)
    return result


def points(rows: Sequence[Sequence[float]] | Array) -> list[Params]:
    return [{"w": torch.tensor(np.asarray(row), dtype=torch.float64)} for row in rows]


def matrix(count: int, columns: int = 30, seed: int = 0) -> Array:
    """Clients that agree roughly, the last of which is another everywhere."""
    values = np.random.default_rng(seed).normal(1.0, 0.1, (count, columns))
    values[-1] += 3
    return np.asarray(values, np.float64)


# ------------------------------------------------------------------------------------------------------- by the book


def line_by_pairs(y: Array) -> tuple[float, float]:
    """Slope and intercept, pair by pair."""
    y, m = np.sort(y), len(y)
    slope = np.median([np.median([(y[i] - y[k]) / (i - k) for k in range(m) if k != i]) for i in range(m)])
    return float(slope), float(np.median(y) - slope * (m - 1) / 2)


def by_the_book(values: Array, lam: float = 2.0, delta: float = 0.1) -> tuple[Array, Array]:
    """The clients' normalised weights and the mean, coordinate by coordinate, with the hat matrix written out."""
    m, d = values.shape
    omega, corrected = np.ones((m, d)), values.copy()
    for j in range(d):
        y = values[:, j]
        slope, intercept = line_by_pairs(y)
        ranks = np.argsort(np.argsort(y, kind="stable"), kind="stable")
        design = np.stack([np.ones(m), ranks], 1)
        hat = np.diag(design @ np.linalg.inv(design.T @ design) @ design.T)
        line = intercept + slope * ranks
        residual = y - line
        scale = 1.4826 * (1 + 5 / (m - 1)) * np.median(np.sort(np.abs(residual))[1:]) + 1e-7
        for i in range(m):
            error = abs(residual[i] / scale)
            omega[i, j] = 1.0 if error == 0 else min(1.0, lam * np.sqrt(2 / m) * np.sqrt(1 - hat[i]) / error)
            if omega[i, j] < delta:
                corrected[i, j] = line[i]
    confidence = (omega * omega.std(0, ddof=1)).sum(1)
    weights = (confidence / confidence.max()) ** 2
    weights /= weights.sum()
    return weights, weights @ corrected


@pytest.mark.parametrize("count", [4, 5, 6, 10, 11])
@pytest.mark.parametrize("cut", [1, 5])
def test_it_is_the_definition_coordinate_by_coordinate(count: int, cut: int) -> None:
    values = matrix(count, seed=count)
    values[0, 3] = values[1, 3] = values[2, 3]  # ties: the earlier client has the smaller rank
    weights, mean = by_the_book(values)
    result = combined(points(values), cut=cut)
    np.testing.assert_allclose(list(result.weights.values()), weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.params["w"].numpy(), mean, rtol=1e-9)


@pytest.mark.parametrize(("lam", "delta"), [(1.0, 0.1), (2.0, 0.5), (0.3, 1.0), (2.0, 0.0)])
def test_both_constants_count(lam: float, delta: float) -> None:
    values = matrix(7)
    weights, mean = by_the_book(values, lam, delta)
    result = combined(points(values), part=ResidualReweighting(lam, delta, distance_buffers=False))
    np.testing.assert_allclose(list(result.weights.values()), weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.params["w"].numpy(), mean, rtol=1e-9)
    paper = combined(points(values)).params["w"].numpy()
    assert not np.allclose(paper, mean)


def test_a_value_whose_weight_is_the_threshold_stays() -> None:
    """Replaced are weights below it; 1 is the largest weight, so a threshold of 1 keeps what is on the line."""
    values = matrix(6)
    result = judged(torch.from_numpy(values), 2.0)
    kept = result.weights == 1
    assert 0 < kept.sum() < kept.numel()
    facts = combined(points(values), part=ResidualReweighting(2.0, 1.0, distance_buffers=False)).facts
    assert facts["corrected"] == pytest.approx(1 - float(kept.double().mean()))


# ----------------------------------------------------------------------------------------------------------- vectors


def test_vector_of_an_outlier() -> None:
    v = federated("arfl.outlier")
    result = combined(
        points(v.inputs["params"]),
        part=ResidualReweighting(v.inputs["lam"], v.inputs["thresh"], distance_buffers=False),
    )
    weights = np.array(list(result.weights.values()))
    assert weights.tolist() == v.approx("normalised_weights")
    assert (weights / weights.max()).tolist() == v.approx("relative_weights")
    assert result.params["w"].tolist() == v.approx("aggregate")
    assert list(result.weights) == list(range(6))
    by_hand, _ = by_the_book(np.array(v.inputs["params"]))
    np.testing.assert_allclose(weights, by_hand, rtol=1e-9)


def test_vector_of_the_repeated_median() -> None:
    v = federated("arfl.repeated_median")
    y = torch.tensor(v.inputs["y"], dtype=torch.float64)
    slope, intercept = repeated_median(y.sort().values[:, None])
    assert (slope.item(), intercept.item()) == (v.approx("slope"), v.approx("intercept"))


def test_vector_of_clients_that_agree() -> None:
    """0/0 in the authors' program."""
    v = federated("arfl.degenerate")
    result = combined(points(v.inputs["params"]), list(range(1, 6)))
    assert result.params["w"].tolist() == v.approx("required")
    assert result.facts == {"fallback": 1.0, "corrected": 0.0}


@pytest.mark.parametrize("count", [4, 5])
def test_the_line_through_points_of_a_line_is_that_line(count: int) -> None:
    slope, intercept = repeated_median(torch.arange(count, dtype=torch.float64)[:, None] * 0.5 - 3)
    assert (slope.item(), intercept.item()) == (0.5, -3.0)


# --------------------------------------------------------------------------------------------------------- relations


def test_relations_that_every_aggregator_keeps() -> None:
    """As in ``compose.metamorphic``: permuted, shifted and doubled clients, scaled sizes, equal clients."""
    values, samples = matrix(8), [3, 1, 4, 1, 5, 9, 2, 6]
    result = combined(points(values), samples)
    base = result.params["w"]
    order = [5, 2, 7, 0, 1, 6, 3, 4]
    permuted = combined(points(values[order]), [samples[i] for i in order])
    torch.testing.assert_close(permuted.params["w"], base, rtol=0, atol=1e-12)
    assert list(permuted.weights.values()) == pytest.approx([result.weights[i] for i in order])
    shift = np.linspace(-3, 3, 30)
    shifted = combined(points(values + shift), samples).params["w"]
    torch.testing.assert_close(shifted, base + torch.from_numpy(shift), rtol=0, atol=1e-6)
    torch.testing.assert_close(combined(points(2 * values), samples).params["w"], 2 * base, rtol=0, atol=1e-6)
    assert torch.equal(combined(points(values), [7 * n for n in samples]).params["w"], base)
    same = combined(points(values[[0] * 8]), samples).params["w"]
    torch.testing.assert_close(same, torch.from_numpy(values[0]), rtol=1e-15, atol=0)


def test_an_outlier_hardly_counts_and_sizes_do_not() -> None:
    """Nine clients near 1, one at 4 with nearly all samples."""
    result = combined(points(matrix(10)), [1] * 9 + [1000])
    assert result.weights[9] < 0.02
    assert (result.params["w"] - 1).abs().max() < 0.3
    assert sum(result.weights.values()) == pytest.approx(1)
    assert 0 < result.facts["corrected"] < 0.2
    assert result.facts["fallback"] == 0


@pytest.mark.parametrize("size", [3e38, -3e38, 1e150])
def test_a_model_that_has_all_but_diverged_is_the_one_that_does_not_count(size: float) -> None:
    """As large as single precision holds, so that the client is not left out as one that diverged."""
    values = matrix(10)
    values[4] = size
    result = combined(points(values))
    assert result.weights[4] == min(result.weights.values()) < 1e-9
    assert result.params["w"].tolist() == pytest.approx(combined(points(matrix(10))).params["w"].tolist(), abs=0.3)


@pytest.mark.parametrize(
    ("times", "theirs", "others"), [(0.5, "0.12", "0.10"), (2.0, "0.06", "0.11"), (4.0, "0.03", "0.12")]
)
def test_clients_that_move_otherwise_weigh_what_the_card_says(times: float, theirs: str, others: str) -> None:
    moves = np.random.default_rng(0).normal(size=(10, 20_000)) * np.array([times] * 2 + [1.0] * 8)[:, None]
    weights = np.array([*combined(points(moves)).weights.values()])
    assert [f"{weights[:2].mean():.2f}", f"{weights[2:].mean():.2f}"] == [theirs, others]


# ------------------------------------------------------------------------------------------------------ whole models


def with_buffers(values: Array) -> list[Params]:
    """The first columns as a layer and a scalar, the last two as running statistics, beside a counter."""
    return [
        {
            "w": torch.tensor(row[:6]).view(2, 3),
            "scale": torch.tensor(row[6]),
            "bn.running_mean": torch.tensor(row[7:8]),
            "bn.running_var": torch.tensor(row[8:9]).abs(),
            "bn.num_batches_tracked": torch.tensor(10 + k),
        }
        for k, row in enumerate(values)
    ]


@pytest.mark.parametrize("cut", [1, 3, 10])
def test_running_statistics_are_averaged_by_the_weights_of_the_parameters(cut: int) -> None:
    values = np.abs(matrix(7, 9))
    values[3, 7:] = 50  # an outlier of statistics alone is neither noticed nor corrected
    weights, mean = by_the_book(values[:, :7])
    result = combined(with_buffers(values), cut=cut)
    np.testing.assert_allclose(list(result.weights.values()), weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.params["w"].flatten().numpy(), mean[:6])
    np.testing.assert_allclose(result.params["scale"].item(), mean[6])
    np.testing.assert_allclose(result.params["bn.running_mean"].item(), weights @ values[:, 7])
    np.testing.assert_allclose(result.params["bn.running_var"].item(), weights @ values[:, 8])
    assert result.params["bn.num_batches_tracked"].item() == 16
    first = with_buffers(values)[0]
    assert {n: (p.shape, p.dtype) for n, p in result.params.items()} == {
        n: (p.shape, p.dtype) for n, p in first.items()
    }


def test_running_statistics_can_be_judged_as_in_the_authors_program() -> None:
    values = np.abs(matrix(7, 9))
    values[3, 7:] = 50
    weights, mean = by_the_book(values)
    result = combined(with_buffers(values), part=ResidualReweighting(2.0, 0.1, distance_buffers=True))
    np.testing.assert_allclose(list(result.weights.values()), weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.params["bn.running_mean"].item(), mean[7])
    assert result.params["bn.num_batches_tracked"].item() == 16


def test_clients_models_are_left_as_they_are() -> None:
    models = points(matrix(6))
    before = [m["w"].clone() for m in models]
    assert combined(models, part=ResidualReweighting(2.0, 1.0, distance_buffers=False)).facts["corrected"] > 0
    assert all(torch.equal(m["w"], b) for m, b in zip(models, before, strict=True))


def test_single_precision_is_judged_in_double() -> None:
    """Residuals of 1e-6 around 1000, which single precision would lose."""
    rows = 1000 + np.linspace(0, 1, 30) + 1e-3 * (matrix(7) - 1)
    single = [{"w": p["w"].float()} for p in points(rows)]
    as_sent = np.stack([p["w"].double().numpy() for p in single])
    weights, mean = by_the_book(as_sent)
    result = combined(single)
    np.testing.assert_allclose(list(result.weights.values()), weights, rtol=1e-9, atol=1e-12)
    assert result.params["w"].dtype == torch.float32
    np.testing.assert_allclose(result.params["w"].numpy(), mean.astype(np.float32), rtol=1e-6)


def test_parts_judged_at_once_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    models = points(matrix(6))
    whole = combined(models)
    monkeypatch.setattr(arfl, "ENTRIES", 6 * 7)
    parts = combined(models)
    assert parts.weights == pytest.approx(whole.weights)
    torch.testing.assert_close(parts.params["w"], whole.params["w"], rtol=1e-12, atol=0)


# ------------------------------------------------------------------------------------ where its weights are undefined


@pytest.mark.parametrize("count", [1, 2])
def test_of_one_or_two_clients_it_is_the_mean_by_samples(count: int) -> None:
    rng = torch.Generator().manual_seed(0)
    models = [{"w": torch.randn(40, generator=rng) / 3, "n": torch.tensor(7 + k)} for k in range(count)]
    result, mean = combined(models, [30, 11][:count]), combined(models, [30, 11][:count], Mean("samples"))
    assert equal(result.params, mean.params)
    assert result.facts["fallback"] == 1
    assert result.weights == dict(enumerate([30.0, 11.0][:count]))


@pytest.mark.parametrize("cut", [1, 5])
def test_a_line_that_nothing_is_far_from_is_the_mean_by_samples(cut: int) -> None:
    """With an enormous lambda all weights are 1, so that no client is more confident than another."""
    rng = torch.Generator().manual_seed(0)
    models = [{"w": torch.randn(40, generator=rng)} for _ in range(8)]
    part = ResidualReweighting(1e12, 0.1, distance_buffers=False)
    result, mean = (combined(models, list(range(1, 9)), p, cut) for p in (part, Mean("samples")))
    assert equal(result.params, mean.params)
    assert result.facts["fallback"] == 1


def test_three_clients_are_enough_for_a_small_lambda() -> None:
    """With the paper's, the scale of three residuals is so wide that no value is far."""
    values = matrix(3)
    assert combined(points(values)).facts["fallback"] == 1
    weights, mean = by_the_book(values, lam=0.3)
    result = combined(points(values), part=ResidualReweighting(0.3, 0.1, distance_buffers=False))
    assert result.facts["fallback"] == 0
    np.testing.assert_allclose(list(result.weights.values()), weights, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.params["w"].numpy(), mean, rtol=1e-9)


def test_nobody_contributed_leaves_the_model() -> None:
    received = {"w": torch.tensor([1.0, 2.0]), "n": torch.tensor(3)}
    empty = PAPER.block(received, [], Payload())
    for blocks in ([], [empty], [empty, empty]):
        assert equal(PAPER.combine(received, blocks, Payload()).params, received)
    models = points(matrix(5))
    results = [ClientResult(k, 1, m, ClientState(), Payload(), 0.0, 1, True) for k, m in enumerate(models)]
    blocks = [PAPER.block(models[0], part, Payload()) for part in (results[:2], [], results[2:])]
    assert equal(PAPER.combine(models[0], blocks, Payload()).params, combined(models).params)


# -------------------------------------------------------------------------------------------------------------- runs


def test_with_an_enormous_lambda_a_run_is_fedavg(tmp_path: Path) -> None:
    setting = ("rounds=3", "partition=fedcorr", *NORMED)
    neutral, plain, other = (
        rounds(Entry("", (*chosen, *setting), {}).words, tmp_path / str(k))[-1].state
        for k, chosen in enumerate([("method=arfl", "method.lam=1.0e+12"), ("method=fedavg",), ("method=arfl",)])
    )
    assert same_params(neutral, plain)
    assert not same_params(other, plain)


def test_what_it_found_is_in_the_rounds_line(tmp_path: Path) -> None:
    lines = [line for line in run(BY_NAME["arfl"].words, tmp_path / "run").lines if "aggregation/fallback" in line]
    assert len(lines) == 5
    assert all(line["aggregation/fallback"] == 0 for line in lines)
    assert all(0 < line["aggregation/corrected"] < 1 for line in lines)
    assert all(1 < line["aggregation/effective_clients"] <= 6 for line in lines)


@pytest.mark.parametrize(("protocol", "lr"), [("cifar10", 0.01), ("cifar100", 0.01), ("clothing1m", 0.003)])
def test_fedcorrs_values_are_the_defaults(protocol: str, lr: float) -> None:
    result = compose.resolved(compose.load(["method=arfl", f"protocol={protocol}"]))
    values = result["method"]["aggregator"]
    assert (values["lam"], values["delta"], values["distance_buffers"], result["train"]["lr"]) == (2.0, 0.1, False, lr)


def test_equal_values_have_ranks_of_their_own() -> None:
    """So the line passes them at different heights; the earlier client has the smaller rank."""
    y = torch.tensor([[1.0], [1.0], [2.0], [3.0], [5.0]], dtype=torch.float64)
    line = judged(y, 2.0).line[:, 0]
    slope, intercept = line_by_pairs(y[:, 0].numpy())
    assert slope > 0
    assert line.tolist() == pytest.approx([intercept + slope * k for k in range(5)])
