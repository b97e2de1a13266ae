"""FedNoRo: its losses, ramp and weights against the vectors, detection against its definition, and rounds of a run."""

import math
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.mixture import GaussianMixture
from torch import Tensor

from flnl.core.findings import NoisyClients
from flnl.core.messages import Broadcast, ClientResult, ClientState, Clock
from flnl.core.parts import Setting
from flnl.core.payload import Params, Payload, size_in_bytes
from flnl.core.step import Step
from flnl.methods.fednoro.aggregator import DistanceAware, distances, model_distance
from flnl.methods.fednoro.detection import noisy_clients, scaled
from flnl.methods.fednoro.exchange import ClassLosses, ClientDetection, MeasureClassLosses
from flnl.methods.fednoro.loss import FedNoRo
from flnl.numerics.ramp import exponential_ramp
from flnl.parts.aggregators.mean import Mean
from flnl.parts.losses.logit_adjustment import adjusted, distilled
from flnl.parts.messages import ClientTag, ClientTags
from tests.properties.runs import assembled, difference, run
from tests.registry import TINY
from tests.toys import ONE_STEP, START, Logits, federation, fitted, network, step, task
from tests.vectors.vectors import federated

TERM = FedNoRo(temperature=0.8, distillation=0.8, ramp_end=49, stage=2)
DETECTION = ClientDetection(inference_augment=False, stage=2)
NAN = math.nan


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def log_prior(counts: Any) -> Tensor:
    prior: Tensor = (f64(counts) / sum(counts)).log()
    return prior


class Taught(torch.nn.Module):
    """A received model with these logits, whatever its inputs."""

    def __init__(self, logits: Tensor) -> None:
        super().__init__()
        self.logits = torch.nn.Parameter(logits)

    def forward(self, inputs: Tensor) -> Tensor:
        given: Tensor = self.logits[: len(inputs)]
        return given


def at(logits: Tensor, labels: Tensor, teacher: Tensor, round: int, tag: Any, lengths: tuple[int, ...]) -> Step:
    """A step of a client that got ``tag`` (None: nothing) in this round."""
    received = {"logits": teacher}
    extras = Payload() if tag is None else Payload(ClientTag(tag))
    sent = Broadcast(round, 2, received, extras, lengths)
    made = step(logits=logits, targets=labels)
    return replace(made, broadcast=sent, passes=network(Taught(teacher)).passes(sent))


def graded(term: FedNoRo, made: Step, prior: Tensor) -> tuple[Tensor, Tensor]:
    """The losses [B], and the gradient of their mean by the logits."""
    logits = made.inputs.clone().requires_grad_()
    loss, after = term(replace(made, computed={"logits": logits}), prior)
    assert after is prior
    (gradient,) = torch.autograd.grad(loss.mean(), logits)
    return loss.detach(), gradient


# -------------------------------------------------------------------------------------------------------- vectors


def test_logits_are_adjusted_by_the_clients_classes() -> None:
    entry = federated("fednoro.logit_adjust")
    logits, labels = f64(entry.inputs["logits"]), torch.tensor(entry.inputs["labels"])
    prior = log_prior(entry.inputs["class_counts"])
    for tag in (None, False):
        loss, gradient = graded(TERM, at(logits, labels, normal(3, 4), 30, tag, (10, 90)), prior)
        assert float(loss.mean()) == entry.approx("loss")
        np.testing.assert_allclose(gradient, entry.expected["grad"], atol=entry.absolute)


def test_a_noisy_client_learns_from_the_received_model() -> None:
    entry = federated("fednoro.la_kd")
    logits, labels = f64(entry.inputs["logits"]), torch.tensor(entry.inputs["labels"])
    prior, teacher = log_prior(entry.inputs["class_counts"]), f64(entry.inputs["teacher_logits"])
    T, share = entry.inputs["T"], entry.inputs["w_kd"]
    np.testing.assert_allclose((teacher / T).softmax(1), entry.expected["soft_labels"], atol=entry.absolute)
    term = replace(TERM, temperature=T, distillation=share)
    loss, gradient = graded(term, at(logits, labels, teacher, 60, True, (10, 90)), prior)
    assert float(loss.mean()) == entry.approx("loss")
    np.testing.assert_allclose(gradient, entry.expected["grad"], atol=entry.absolute)


def test_the_ramp() -> None:
    entry = federated("fednoro.rampup")
    begin, end, a = (entry.inputs[key] for key in ("begin", "end", "a"))
    assert [exponential_ramp(t, begin, end, a) for t in entry.inputs["t"]] == entry.approx("w")
    assert exponential_ramp(5, begin, end, a) == exponential_ramp(begin, begin, end, a)
    assert exponential_ramp(7, 7, 7, a) == exponential_ramp(7, 9, 7, a) == a


def result(client: int, params: Params, size: int) -> ClientResult:
    return ClientResult(client, size, params, ClientState(), Payload(), 0.0, 1, finite=True)


def test_noisy_clients_count_by_their_distance() -> None:
    entry = federated("fednoro.daagg")
    models = {
        k: {name: torch.tensor(value, dtype=torch.int64 if name == "n" else torch.float64) for name, value in m.items()}
        for k, m in enumerate(entry.inputs["clients"])
    }
    noisy, sizes = entry.inputs["noisy"], entry.inputs["n"]
    for distance, name in (("sum_of_norms", "min_dist"), ("flat_l2", "flat_l2_distance_as_in_FedNoisy")):
        far = distances(models, noisy, distance, buffers=False)  # type: ignore[arg-type]
        assert list(far.values()) == entry.approx(name)
    aggregator, known = DistanceAware("sum_of_norms", buffers=False), Payload(ClientTags(torch.arange(4) >= 2))
    results = [result(k, models[k], sizes[k]) for k in range(4)]
    blocks = [aggregator.block(models[0], part, known) for part in (results[:3], results[3:])]
    combined = aggregator.combine(models[0], blocks, known)
    weights = np.array([combined.weights[k] for k in range(4)])
    assert list(weights / weights.sum()) == entry.approx("weights")
    for name, value in entry.expected["aggregate"].items():
        assert combined.params[name].tolist() == entry.near(value)
    assert combined.params["n"] == 5
    assert combined.facts == {"noisy_clients": 2.0, "largest_distance": entry.near(4.69999981)}


# ------------------------------------------------------------------------------------------------------- the loss


def test_equal_classes_are_cross_entropy() -> None:
    logits, labels = normal(6, 3), torch.arange(6) % 3
    loss, gradient = graded(TERM, at(logits, labels, normal(6, 3), 30, None, (10, 90)), log_prior([2, 2, 2]))
    torch.testing.assert_close(loss, F.cross_entropy(logits, labels, reduction="none"), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradient, (logits.softmax(1) - F.one_hot(labels)) / 6, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("round", [10, 25, 49, 80])
def test_distillation_is_mixed_in_by_the_ramp_from_the_stage_on(round: int) -> None:
    logits, labels, teacher, prior = (
        normal(4, 3),
        torch.tensor([0, 1, 2, 0]),
        normal(4, 3, seed=1),
        log_prior([2, 1, 1]),
    )
    loss, _ = graded(TERM, at(logits, labels, teacher, round, True, (10, 90)), prior)
    student = (logits + prior).log_softmax(1)
    soft = (teacher / 0.8).softmax(1)
    kl = F.kl_div(student, soft, reduction="none").sum(1)
    share = 0.8 * math.exp(-5 * (1 - (min(round, 49) - 10) / 39) ** 2)
    wanted = (1 - share) * F.nll_loss(student, labels, reduction="none") + share * kl
    torch.testing.assert_close(loss, wanted, rtol=1e-10, atol=1e-12)


def test_clients_that_are_trained_together_may_differ_in_their_tags() -> None:
    """Then a tag is a tensor."""
    logits, labels, teacher, prior = (
        normal(4, 3),
        torch.tensor([0, 1, 2, 0]),
        normal(4, 3, seed=1),
        log_prior([2, 1, 1]),
    )
    for tag in (True, False):
        one, other = (
            graded(TERM, at(logits, labels, teacher, 30, t, (10, 90)), prior) for t in (tag, torch.tensor(tag))
        )
        for a, b in zip(one, other, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-14, atol=1e-15)


def test_mixed_labels_and_absent_classes_are_finite() -> None:
    prior = log_prior([3, 1, 0])
    targets = f64([[0.5, 0.5, 0.0], [0.3, 0.0, 0.7]])
    logits = normal(2, 3)
    loss, gradient = graded(TERM, at(logits, targets, normal(2, 3, seed=1), 30, True, (10, 90)), prior)
    assert bool(loss.isfinite().all())
    assert gradient[:, 2].tolist() == [0, 0]
    plain, _ = graded(TERM, at(logits, targets, normal(2, 3, seed=1), 30, None, (10, 90)), prior)
    logs = adjusted(logits, prior)
    torch.testing.assert_close(plain, -(targets * logs).sum(1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [100.0, 1000.0])
def test_certain_and_wrong_predictions_have_finite_gradients(gap: float, dtype: torch.dtype) -> None:
    logits = gap * torch.eye(3, dtype=dtype)
    made = at(logits, torch.tensor([1, 1, 0]), logits.roll(1, 0), 60, True, (10, 90))
    loss, gradient = graded(TERM, made, log_prior([2, 1, 0]).to(dtype))
    assert bool(loss.isfinite().all())
    assert bool(gradient.isfinite().all())
    assert bool(distilled(logits.log_softmax(1), logits, 0.8).abs().max() < 1e-5)


def test_priors_are_of_the_labels_that_a_client_holds() -> None:
    data = federation([torch.zeros(4, 1, 1, 3)], [torch.tensor([0, 0, 0, 1])])
    module = Logits()
    net = network(module)
    assert TERM.begin(net, task(module, data.samples(0)), None).exp().tolist() == pytest.approx([0.75, 0.25, 0])
    mended = ClientState(labels=torch.tensor([0, 2, 2, 1]))
    prior = TERM.begin(net, task(module, data.samples(0), state=mended), None)
    assert prior.exp().tolist() == pytest.approx([0.25, 0.25, 0.5])
    assert TERM.finish(net, task(module, data.samples(0)), fitted({}), prior) is None


def test_a_ramp_that_does_not_end_is_a_caution() -> None:
    setting = Setting({0: 10}, (10, 40), ONE_STEP)
    assert TERM.caution(setting) is None
    assert replace(TERM, ramp_end=50, distillation=0.0).caution(setting) is None
    caution = replace(TERM, ramp_end=50).caution(setting)
    assert caution is not None
    assert "in round 50 (ramp_end), and the run has 50" in caution


# ------------------------------------------------------------------------------------------------------ detection


def as_released(losses: np.ndarray[Any, Any]) -> set[int]:
    """The noisy clients as the method is described, step by step."""
    metrics = losses.copy()
    for j in range(metrics.shape[1]):
        column = metrics[:, j]
        column[np.isnan(column)] = np.nanmin(column)
        metrics[:, j] = (column - column.min()) / (column.max() - column.min())
    votes = []
    for seed in range(9):
        mixture = GaussianMixture(n_components=2, random_state=seed).fit(metrics)
        votes.append({*np.flatnonzero(mixture.predict(metrics) == np.argmax(mixture.means_.sum(1))).tolist()})
    counts = [votes.count(vote) for vote in votes]
    return votes[counts.index(max(counts))]


@pytest.mark.parametrize("seed", range(8))
def test_the_split_is_the_released_one(seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = rng.gamma(4, 0.3, (12, 4)) + (rng.random(12) < 0.5)[:, None] * rng.random((12, 4)) * (seed / 2)
    losses[rng.random((12, 4)) < 0.2] = NAN
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        wanted = as_released(losses)
    assert {*np.flatnonzero(noisy_clients(losses)).tolist()} == wanted


def test_votes_can_differ() -> None:
    """So the vote is needed: single fits of some losses disagree."""
    rng = np.random.default_rng(1)
    points = scaled(rng.gamma(4, 0.3, (20, 10)))
    fits = [GaussianMixture(n_components=2, random_state=seed).fit(points) for seed in range(9)]
    splits = {tuple(fit.predict(points) == fit.means_.sum(1).argmax()) for fit in fits}
    assert len(splits) > 1


def test_losses_are_scaled_by_class() -> None:
    losses = np.array([[1.0, NAN, 5.0, NAN], [3.0, 2.0, 5.0, NAN], [2.0, 6.0, math.inf, NAN]])
    assert scaled(losses).tolist() == [[0, 0, 0, 0], [1, 0, 0, 0], [0.5, 1, 1, 0]]
    infinite = np.array([[math.inf, 1.0], [math.inf, NAN], [NAN, 4.0]])
    assert scaled(infinite).tolist() == [[0, 0], [0, 0], [0, 1]]


@pytest.mark.parametrize("bad", [math.inf, NAN])
def test_a_client_whose_losses_overflow_is_the_noisiest(bad: float) -> None:
    """Of five alike, and one with clearly larger losses; NaN stands for a class without samples alone."""
    labels, module = torch.tensor([0, 0, 1, 1, 2]), Logits()
    pixels = [torch.eye(3)[labels] * size for size in (3.0, 3.1, 2.9, 3.2, 3.0, -3.0)]
    pixels[1][:] = bad
    data = federation([p[:, None, None] for p in pixels], [labels] * 6)
    net, job = network(module, transform=data.dataset.transform), MeasureClassLosses(inference_augment=False)
    reports = {k: job(net, task(module, data.samples(k), client=k)).reports for k in range(6)}
    assert reports[1].one(ClassLosses).values.tolist() == [math.inf] * 3
    after = DETECTION.receive(DETECTION.init(6, {}), reports, 1)
    assert after.noisy.tolist() == [False, True, False, False, False, True]
    (found,) = DETECTION.findings(after, {}, Payload())
    assert isinstance(found, NoisyClients)
    assert found.scores["class_loss"].argmax() == 1
    assert found.scores["class_loss"][1] == 1


@pytest.mark.parametrize("losses", [np.ones((5, 3)), np.full((4, 2), NAN), np.ones((1, 3)), np.empty((0, 3))])
def test_clients_that_do_not_differ_are_clean(losses: np.ndarray[Any, Any]) -> None:
    assert noisy_clients(losses).tolist() == [False] * len(losses)


def test_the_order_of_clients_does_not_matter_where_they_differ_clearly() -> None:
    losses = np.array([[0.1, 0.2], [2.0, 2.1], [0.2, 0.1], [1.9, 2.2], [0.15, 0.2], [2.1, 1.8]])
    assert noisy_clients(losses).tolist() == [False, True] * 3
    assert noisy_clients(losses[::-1].copy()).tolist() == [True, False] * 3


def test_a_client_reports_its_mean_loss_on_each_class() -> None:
    pixels, labels = normal(5, 1, 1, 3).float(), torch.tensor([0, 0, 2, 2, 2])
    data = federation([pixels], [labels])
    module = Logits()
    net = network(module, transform=data.dataset.transform)
    opened = MeasureClassLosses(inference_augment=False)(net, task(module, data.samples(0)))
    losses = F.cross_entropy(pixels.view(5, 3).double(), labels, reduction="none")
    assert opened.reports.one(ClassLosses).values.tolist() == pytest.approx(
        [float(losses[:2].mean()), NAN, float(losses[2:].mean())], nan_ok=True
    )
    mended = ClientState(labels=torch.tensor([1, 1, 1, 1, 1]))
    opened = MeasureClassLosses(inference_augment=False)(net, task(module, data.samples(0), state=mended))
    assert opened.reports.one(ClassLosses).values.isnan().tolist() == [True, False, True]
    assert len(opened.keeps) == 0


def test_the_server_tags_clients_once_they_have_reported() -> None:
    before = DETECTION.init(5, {})
    assert DETECTION.receive(before, {0: Payload(), 1: Payload(3)}, 1) is before
    assert DETECTION.send(before, 0, START) == DETECTION.findings(before, {}, Payload()) == ()
    assert not DETECTION.known(before)[0].noisy.any()
    values: Mapping[int, Any] = {0: [0.1, 0.2], 1: [2.0, 2.2], 3: [0.2, NAN], 4: [2.1, 1.8]}  # 2 holds no data
    state = DETECTION.receive(before, {k: Payload(ClassLosses(f64(v))) for k, v in values.items()}, 1)
    assert state.noisy.tolist() == [False, True, False, False, True]
    assert [DETECTION.send(state, k, START)[0].noisy for k in range(5)] == state.noisy.tolist()
    assert torch.equal(DETECTION.known(state)[0].noisy, state.noisy)
    (found,) = DETECTION.findings(state, {}, Payload())
    assert isinstance(found, NoisyClients)
    assert found.scores["class_loss"].argsort(descending=True)[:2].tolist() == [1, 4]
    assert DETECTION.receive(state, {0: Payload()}, 1) is state


def test_comparing_before_any_training_is_a_caution() -> None:
    setting = Setting({0: 10}, (4, 6), ONE_STEP, "method.exchange.class_losses")
    assert DETECTION.caution(setting) is None
    caution = DETECTION.caution(replace(setting, lengths=(0, 10)))
    assert caution is not None
    assert caution.startswith("method.exchange.class_losses compares clients before the first round")
    asked = [DETECTION.before_round(DETECTION.init(2, {}), Clock(*when, (4, 6))) for when in ((0, 1), (4, 2), (5, 2))]
    assert [job is not None for job in asked] == [False, True, False]


# ---------------------------------------------------------------------------------------------------- aggregation


def test_running_statistics_count_in_distances_only_on_demand() -> None:
    one = {"w": f64([3.0]), "bn.running_mean": f64([1.0]), "bn.num_batches_tracked": torch.tensor(3)}
    other = {"w": f64([0.0]), "bn.running_mean": f64([5.0]), "bn.num_batches_tracked": torch.tensor(9)}
    assert model_distance(one, other, "sum_of_norms", buffers=False) == 3
    assert model_distance(one, other, "sum_of_norms", buffers=True) == 7
    assert model_distance(one, other, "flat_l2", buffers=True) == 5


@pytest.mark.parametrize("noisy", [[], [0, 1, 2], [3]])
def test_without_both_kinds_of_client_it_is_the_mean(noisy: list[int]) -> None:
    """Also if the only noisy client is not of the cohort."""
    models = [{"w": normal(4, seed=k), "n": torch.tensor(k)} for k in range(3)]
    results = [result(k, models[k], 10 + k) for k in range(3)]
    tags = torch.zeros(4, dtype=torch.bool)
    tags[noisy] = True
    known = Payload(ClientTags(tags))
    ours, plain = DistanceAware("sum_of_norms", buffers=False), Mean("samples")
    combined = ours.combine(models[0], [ours.block(models[0], results, known)], known).params
    assert (
        difference(combined, plain.combine(models[0], [plain.block(models[0], results, known)], known).params) is None
    )
    assert ours.combine(models[0], [], known).params is models[0]


def test_equal_models_are_averaged_by_samples() -> None:
    model = {"w": normal(3)}
    known, ours = Payload(ClientTags(torch.tensor([False, True]))), DistanceAware("flat_l2", buffers=False)
    block = ours.block(model, [result(0, model, 3), result(1, model, 5)], known)
    assert ours.combine(model, [block], known).weights == {0: 3.0, 1: 5.0}


# ---------------------------------------------------------------------------------------------------------- a run

SMALL = (*(w for w in TINY if "fraction" not in w), "fraction=1.0", "precision=64")
RUN = (*SMALL, "method=fednoro", "method.s1=2", "method.T=2", "method.ramp_end=3", "noise=fedcorr", "noise.rho=0.5")


def test_a_run_compares_clients_once_and_weighs_them_afterwards(tmp_path: Path) -> None:
    with assembled(RUN, tmp_path / "run") as parts:
        results = parts.results()
        net, dealt = parts.evaluator.network, parts.federation
        states = [result.state.server.exchanges["class_losses"] for result in results]
        assert [state.compared for state in states] == [False, False, True, True]
        net.load(results[1].state.server.params)
        for client in range(8):
            samples = dealt.samples(client)
            losses = F.cross_entropy(net.logits(samples), samples.given, reduction="none").numpy()
            given = samples.given.numpy()
            wanted = [losses[given == c].mean() if (given == c).any() else NAN for c in range(10)]
            np.testing.assert_allclose(states[2].losses[client], wanted, rtol=1e-9)
        assert difference(states[3], states[2]) is None
        assert states[2].noisy.tolist() == noisy_clients(states[2].losses.numpy()).tolist()
        assert 0 < int(states[2].noisy.sum()) < 8
    facts = [result.metrics["aggregation/largest_distance"] for result in results]
    assert facts[:2] == [0, 0]
    assert min(facts[2:]) > 0
    assert results[2].metrics["aggregation/noisy_clients"] == int(states[2].noisy.sum())
    model = size_in_bytes(results[0].state.server.params)
    down, up = ([getattr(r.state.counters, name) for r in results] for name in ("bytes_down", "bytes_up"))
    assert [b - a for a, b in zip([0, *down], down, strict=False)] == [
        8 * model,
        8 * model,
        16 * model + 8,
        8 * model + 8,
    ]
    assert [b - a for a, b in zip([0, *up], up, strict=False)] == [8 * model, 8 * model, 8 * model + 8 * 80, 8 * model]


def test_a_run_measures_the_split(tmp_path: Path) -> None:
    done = run(RUN, tmp_path / "run")
    assert "given" not in done.record
    state = done.state.server.exchanges["class_losses"]
    assert done.record["clients"]["noisy"] == state.noisy.tolist()
    np.testing.assert_allclose(done.record["clients"]["class_loss"], scaled(state.losses.numpy()).mean(1))
    assert {"client_detection_precision", "client_detection_recall"} <= done.record["metrics"].keys()
