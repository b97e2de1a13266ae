"""Forward correction: matrices and losses against the vectors and closed forms, estimation by clients in a run."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.findings import EstimatedNoise
from flnl.core.messages import ClientState
from flnl.core.parts import Setting
from flnl.core.payload import Payload, size_in_bytes
from flnl.methods.loss_correction.exchange import EstimateTransition, TransitionEstimate
from flnl.methods.loss_correction.loss import LossCorrection, reweighted_loss
from flnl.methods.loss_correction.transition import (
    TransitionMatrix,
    confident_counts,
    from_anchors,
    normalized,
    without_empty_columns,
)
from flnl.parts.losses.forward_correction import forward_loss
from tests.properties.runs import assembled, difference, rounds, run
from tests.registry import TINY
from tests.toys import ONE_STEP, Logits, federation, network, step, task
from tests.vectors.vectors import FOLDER, LABEL_NOISE, label_noise

TERM = LossCorrection("forward")
ESTIMATE = TransitionEstimate("confident", threshold=0.95, min_count=1, percentile=97, stage=2)


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def stochastic(classes: int, seed: int = 0) -> Tensor:
    """A transition matrix without symmetry."""
    return normal(classes, classes, seed=seed).softmax(1)


def corrected(logits: Tensor, targets: Tensor, matrix: Tensor | None, term: LossCorrection = TERM) -> Any:
    """The loss [B] of a client that keeps the matrix, and the gradient of its mean by the logits."""
    logits = logits.clone().requires_grad_()
    kept = Payload() if matrix is None else Payload(TransitionMatrix(matrix, f64([1.0])))
    loss, _ = term(replace(step(logits=logits, targets=targets), kept=kept), None)
    (gradient,) = torch.autograd.grad(loss.mean(), logits)
    return loss.detach(), gradient


def deviation(name: str) -> dict[str, Any]:
    """What the vector says of the official program where that is wrong."""
    entries = json.loads((FOLDER / LABEL_NOISE).read_text())["vectors"]
    return next(entry["official_deviation"] for entry in entries if entry["id"] == name)


# -------------------------------------------------------------------------------------------------------- vectors


def test_the_corrected_loss_of_an_asymmetric_matrix() -> None:
    entry = label_noise("forward_correction")
    logits, labels, matrix = f64(entry.inputs["logits"]), torch.tensor(entry.inputs["labels"]), f64(entry.inputs["T"])
    loss, gradient = corrected(logits, labels, matrix)
    assert float(loss.mean()) == entry.approx("mean")
    np.testing.assert_allclose(gradient, entry.expected["grad"], atol=entry.absolute, rtol=entry.relative)
    noisy = torch.stack([(-forward_loss(logits, torch.full((4,), j), matrix)).exp() for j in range(3)], 1)
    np.testing.assert_allclose(noisy, entry.expected["noisy_probs"], atol=entry.absolute, rtol=entry.relative)
    transposed = forward_loss(logits, labels, matrix.T).mean()
    assert float(transposed) == pytest.approx(deviation("forward_correction")["mean_with_wrong_orientation"], rel=1e-6)


def test_a_label_that_no_class_gives_has_a_large_but_finite_loss() -> None:
    entry = label_noise("forward_correction_zero_column")
    logits, labels, matrix = f64(entry.inputs["logits"]), torch.tensor(entry.inputs["labels"]), f64(entry.inputs["T"])
    assert float(forward_loss(logits, labels, matrix)) > entry.expected["unsmoothed_loss_at_least"]
    loss, gradient = corrected(logits, labels, without_empty_columns(matrix))
    assert float(loss) == entry.approx("smoothed_loss")
    assert bool(gradient.isfinite().all())


def test_the_wrong_class_can_have_the_smaller_loss() -> None:
    entry = label_noise("forward_correction_fedpeer_example")
    certain = 200 * torch.eye(3, dtype=torch.float64)
    losses = forward_loss(certain, torch.full((3,), entry.inputs["label"]), f64(entry.inputs["T"]))
    assert float(losses[1]) == entry.approx("loss_f2")
    assert float(losses[2]) == entry.approx("loss_f3")


def test_anchors() -> None:
    entry = label_noise("T_estimation_anchor")
    probabilities = f64(entry.inputs["probs"])
    before = probabilities.clone()
    for percentile, name in ((None, "argmax_anchor"), (97.0, "percentile97_correct")):
        estimate = from_anchors(probabilities, percentile)
        np.testing.assert_allclose(estimate, entry.expected[name], atol=entry.absolute)
    torch.testing.assert_close(probabilities, before, rtol=0, atol=0)
    wrong = deviation("T_estimation_anchor")
    rows = normalized(f64(wrong["official_percentile_inplace_view"]))
    np.testing.assert_allclose(rows, wrong["correct_row_norm"], atol=1e-6)


def test_confident_predictions_are_counted_against_given_labels() -> None:
    entry = label_noise("T_estimation_confident_count")
    probabilities, labels = f64(entry.inputs["probs"]), torch.tensor(entry.inputs["noisy_labels"])
    counts = confident_counts(probabilities, labels, entry.inputs["threshold"])
    assert counts.tolist() == entry.expected["counts"]
    np.testing.assert_allclose(normalized(counts), entry.expected["T"], atol=entry.absolute)


# ----------------------------------------------------------------------------------------------------- the matrix


def test_rows_of_few_counts_are_the_identity() -> None:
    counts = f64([[2, 2, 0], [1, 0, 0], [0, 0, 0]])
    assert normalized(counts).tolist() == [[0.5, 0.5, 0], [1, 0, 0], [0, 0, 1]]
    assert normalized(counts, 2).tolist() == [[0.5, 0.5, 0], [0, 1, 0], [0, 0, 1]]
    assert normalized(counts, 5).tolist() == torch.eye(3).tolist()


def test_confidence_is_above_the_threshold() -> None:
    probabilities, labels = f64([[0.5, 0.5], [0.25, 0.75], [1.0, 0.0]]), torch.tensor([0, 0, 1])
    assert confident_counts(probabilities, labels, 0.5).tolist() == [[0, 1], [1, 0]]
    assert confident_counts(probabilities, labels, 1.0).tolist() == [[0, 0], [0, 0]]


@pytest.mark.parametrize("count", [1, 2, 33, 34, 35, 100, 101])
@pytest.mark.parametrize("percentile", [0.0, 50.0, 97.0, 100.0])
def test_anchors_are_the_best_samples_below_the_percentile(count: int, percentile: float) -> None:
    probabilities = normal(count, 3, seed=count).softmax(1)
    estimate = from_anchors(probabilities, percentile).numpy()
    given = probabilities.numpy()
    for i in range(3):
        bound = np.percentile(given[:, i], percentile, method="higher")
        below = np.flatnonzero(given[:, i] < bound)
        candidates = below if len(below) else np.arange(count)
        np.testing.assert_allclose(estimate[i], given[candidates[np.argmax(given[candidates, i])]], rtol=1e-12)


def test_without_samples_or_differences_there_is_still_a_matrix() -> None:
    assert from_anchors(torch.empty(0, 3), 97.0).tolist() == torch.eye(3).tolist()
    assert from_anchors(torch.full((4, 2), 0.5), 97.0).tolist() == [[0.5, 0.5]] * 2


def test_only_matrices_with_an_empty_column_are_smoothed() -> None:
    for whole in (torch.eye(3, dtype=torch.float64), stochastic(3)):
        assert without_empty_columns(whole) is whole
    smoothed = without_empty_columns(f64([[1, 0, 0], [1, 0, 0], [0, 0.5, 0.5]]))
    assert torch.equal(smoothed, f64([[1, 0, 0], [1, 0, 0], [0, 0.5, 0.5]]))
    smoothed = without_empty_columns(f64([[1, 0], [1, 0]]))
    assert smoothed.tolist() == [[pytest.approx(1 - 5e-7, abs=1e-15), pytest.approx(5e-7, rel=1e-9)]] * 2


# ------------------------------------------------------------------------------------------------------- the loss


def test_the_gradient_is_the_prediction_less_the_posterior() -> None:
    logits, labels, matrix = normal(6, 4), torch.tensor([0, 1, 2, 3, 3, 0]), stochastic(4, seed=1)
    loss, gradient = corrected(logits, labels, matrix)
    p = logits.softmax(1)
    joint = p * matrix[:, labels].T
    torch.testing.assert_close(loss, -joint.sum(1).log(), rtol=1e-12, atol=1e-12)
    posterior = joint / joint.sum(1, keepdim=True)
    torch.testing.assert_close(gradient, (p - posterior) / 6, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient.sum(1), torch.zeros(6, dtype=torch.float64), rtol=0, atol=1e-15)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_without_noise_it_is_cross_entropy_to_the_bit(dtype: torch.dtype) -> None:
    logits, labels = (3 * normal(50, 5)).to(dtype), torch.arange(50) % 5
    (one, by_one), (other, by_other) = (corrected(logits, labels, m) for m in (torch.eye(5).double(), None))
    assert torch.equal(one, other)
    assert torch.equal(by_one, by_other)
    assert torch.equal(other, F.cross_entropy(logits, labels, reduction="none"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [100.0, 200.0, 1000.0])
def test_certain_and_wrong_predictions_are_exact(gap: float, dtype: torch.dtype) -> None:
    logits, labels = torch.tensor([[gap, 0.0, 0.0]], dtype=dtype), torch.tensor([1])
    assert float(corrected(logits, labels, torch.eye(3).double())[0]) == pytest.approx(gap, rel=1e-6)
    for form in ("forward", "reweight"):
        for matrix in (torch.eye(3).double(), stochastic(3), without_empty_columns(f64([[1, 0, 0]] * 3))):
            loss, gradient = corrected(logits, labels, matrix, LossCorrection(form))
            assert bool(loss.isfinite().all())
            assert bool(gradient.isfinite().all())


def test_labels_of_tiny_probability_are_finite_in_single_precision() -> None:
    """Anchors of a certain network; log 1e-60 fits into float32, 1e-60 does not."""
    matrix = f64([[1.0, 1e-60], [1.0, 1e-60]])
    loss, gradient = corrected(torch.tensor([[0.5, -0.5]]), torch.tensor([1]), matrix)
    assert float(loss) == pytest.approx(60 * math.log(10), rel=1e-6)
    assert bool(gradient.isfinite().all())


@pytest.mark.parametrize("form", ["forward", "reweight"])
def test_the_loss_of_mixed_labels_is_the_mixture_of_losses(form: Any) -> None:
    logits, matrix, term = normal(5, 3), stochastic(3), LossCorrection(form)
    labels, others = torch.tensor([0, 1, 2, 0, 1]), torch.tensor([2, 2, 2, 1, 0])
    hot = torch.eye(3, dtype=torch.float64)
    mixed = corrected(logits, 0.3 * hot[labels] + 0.7 * hot[others], matrix, term)
    one, other = corrected(logits, labels, matrix, term), corrected(logits, others, matrix, term)
    for found, a, b in zip(mixed, one, other, strict=True):
        torch.testing.assert_close(found, 0.3 * a + 0.7 * b, rtol=1e-12, atol=1e-12)


def test_without_an_estimate_it_is_cross_entropy() -> None:
    logits, labels = normal(4, 3), torch.tensor([0, 1, 2, 0])
    for form in ("forward", "reweight"):
        loss, _ = corrected(logits, labels, None, LossCorrection(form))
        assert torch.equal(loss, F.cross_entropy(logits, labels, reduction="none"))


# --------------------------------------------------------------------------------------------------- the estimate

PIXELS = 5 * f64([[1, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0.1], [0, 1, 0]])
GIVEN = [0, 2, 1, 2, 2]
"""Four confident predictions of classes 0 and 1, and an unsure one."""


def estimated(job: EstimateTransition, state: ClientState | None = None) -> TransitionMatrix:
    data = federation([PIXELS.view(5, 1, 1, 3)], [torch.tensor(GIVEN)])
    module = Logits()
    net = network(module, transform=data.dataset.transform)
    opened = job(net, task(module, data.samples(0), state=state))
    assert len(opened.reports) == 0
    return opened.keeps.one(TransitionMatrix)


def test_a_client_counts_its_labels() -> None:
    job = EstimateTransition("confident", 0.95, 1, None)
    found = estimated(job)
    assert found.values.dtype == torch.float64
    assert found.values.tolist() == [[0.5, 0.5, 0], [0, 0, 1], [0, 0, 1]]
    assert found.predicted.tolist() == [0.4, 0.4, 0.2]
    assert found.noise() == pytest.approx(0.4 * 0.5 + 0.4 * 1)
    assert estimated(replace(job, min_count=3)).values.tolist() == torch.eye(3).tolist()
    mended = ClientState(labels=torch.tensor([0, 1, 0, 2, 1]))
    assert estimated(job, mended).values.tolist() == torch.eye(3).tolist()


def test_a_client_takes_its_anchors_predictions() -> None:
    found = estimated(EstimateTransition("anchor", 0.95, 1, None))
    torch.testing.assert_close(found.values, PIXELS[[0, 1, 3]].softmax(1), rtol=1e-6, atol=1e-9)


def test_a_label_without_a_class_is_given_a_little_probability() -> None:
    labels = torch.tensor([2, 2, 2, 2, 2])
    found = estimated(EstimateTransition("confident", 0.3, 1, None), ClientState(labels=labels)).values
    torch.testing.assert_close(found, f64([[1e-6 / 3, 1e-6 / 3, 1 - 2e-6 / 3]] * 3), rtol=1e-9, atol=1e-15)


def test_levels_are_of_the_clients_that_estimated() -> None:
    estimate = TransitionMatrix(f64([[0.75, 0.25], [0.5, 0.5]]), f64([0.5, 0.5]))
    clients = {0: ClientState(), 2: ClientState(extras=Payload(estimate))}
    assert ESTIMATE.findings(ESTIMATE.init(3, {}), {0: ClientState()}, Payload()) == ()
    (found,) = ESTIMATE.findings(ESTIMATE.init(3, {}), clients, Payload())
    assert isinstance(found, EstimatedNoise)
    np.testing.assert_array_equal(found.values, [np.nan, np.nan, 0.375])


def test_an_estimate_before_the_first_round_is_a_caution() -> None:
    setting = Setting({0: 10}, (4, 6), ONE_STEP, "method.exchange.transition_matrix")
    assert ESTIMATE.caution(setting) is None
    for stage, lengths in ((1, (10,)), (2, (0, 10))):
        caution = replace(ESTIMATE, stage=stage).caution(replace(setting, lengths=lengths))
        assert caution is not None
        assert caution.startswith("method.exchange.transition_matrix estimates transition matrices before the first")


# ---------------------------------------------------------------------------------------------------------- a run

SMALL = ("method.T_wu=2", "method.T=2", "noise=symmetric", "noise.eta=0.4", "precision=64")
RUN = (*TINY, "method=forward_correction", "method.threshold=0.15", *SMALL)


@pytest.mark.parametrize("restart", [False, True])
def test_clients_estimate_once_from_the_model_at_the_end_of_the_warm_up(restart: bool, tmp_path: Path) -> None:
    with assembled(RUN, tmp_path / "run", f"method.restart={str(restart).lower()}") as parts:
        results = parts.results()
        net, dealt = parts.evaluator.network, parts.federation
        assert not results[1].state.clients
        net.load(results[1].state.server.params)
        for client in range(8):
            samples = dealt.samples(client)
            p = net.logits(samples).softmax(1).numpy()
            counts = np.zeros((10, 10))
            for row, label in zip(p, samples.given.tolist(), strict=True):
                counts[row.argmax(), label] += row.max() > 0.15
            wanted = np.where(
                counts.sum(1, keepdims=True) > 0, counts / counts.sum(1, keepdims=True).clip(1), np.eye(10)
            )
            if (wanted.sum(0) == 0).any():
                wanted = (1 - 1e-6) * wanted + 1e-7
            for result in results[2:]:
                kept = result.state.client(client).extras.one(TransitionMatrix)
                np.testing.assert_allclose(kept.values, wanted, rtol=1e-9, atol=1e-12)
            assert not np.allclose(wanted, np.eye(10), atol=1e-3)
        model = size_in_bytes(results[0].state.server.params)
        down = [result.state.counters.bytes_down for result in results]
        up = [result.state.counters.bytes_up for result in results]
        assert [b - a for a, b in zip([0, *down], down, strict=False)] == [6 * model, 6 * model, 14 * model, 6 * model]
        assert [b - a for a, b in zip([0, *up], up, strict=False)] == [6 * model] * 4


def test_the_warm_up_is_fedavg_and_the_rest_is_not(tmp_path: Path) -> None:
    ours = rounds(RUN, tmp_path / "ours")
    theirs = rounds([*TINY, "method=fedavg", "rounds=4", *SMALL[2:]], tmp_path / "theirs")
    same = [difference(a.state.server.params, b.state.server.params) is None for a, b in zip(ours, theirs, strict=True)]
    assert same == [True, True, False, False]


def test_a_run_measures_the_noise_that_the_matrices_imply(tmp_path: Path) -> None:
    done = run(RUN, tmp_path / "run")
    assert "given" not in done.record
    levels = done.record["clients"]["level"]
    wanted = [done.state.client(k).extras.one(TransitionMatrix).noise() for k in done.record["clients"]["client"]]
    np.testing.assert_allclose(levels, wanted, rtol=1e-12)
    assert max(levels) > 0.1
    assert done.record["metrics"]["noise_level_error"] < 1


def test_centralized_there_is_one_matrix(tmp_path: Path) -> None:
    last = rounds([*RUN, "centralized=true", "fraction=1.0", "train.epochs=1"], tmp_path / "run")[-1]
    assert list(last.state.clients) == [0]
    assert last.state.client(0).extras.one(TransitionMatrix).noise() > 0.1


def test_it_can_take_the_place_of_cross_entropy_in_another_methods_last_stage(tmp_path: Path) -> None:
    words = ("method=fedes", "method.s1=1", "method.T=1", "fraction=1.0")
    more = ("method/local=[forward_correction]", "method/exchange=[fedes_quality,loss_correction_transition_matrix]")
    first, last = rounds([*(w for w in TINY if "fraction" not in w), *words, *more], tmp_path / "run")
    assert all(own.extras.get(TransitionMatrix) is None for own in first.state.clients.values())
    assert all(own.extras.get(TransitionMatrix) is not None for own in last.state.clients.values())


def test_reweighting_is_of_the_same_matrices_but_another_loss() -> None:
    logits, labels, matrix = normal(6, 3), torch.tensor([0, 1, 2, 0, 1, 2]), stochastic(3)
    p = logits.softmax(1)
    beta = p / (p @ matrix)
    wanted = [float(-beta[i, y] * p[i, y].log()) for i, y in enumerate(labels.tolist())]
    loss, _ = corrected(logits, labels, matrix, LossCorrection("reweight"))
    np.testing.assert_allclose(loss, wanted, rtol=1e-12)
    assert not torch.allclose(loss, forward_loss(logits, labels, matrix))
    np.testing.assert_allclose(reweighted_loss(logits, labels, matrix, constant=False), wanted, rtol=1e-12)
