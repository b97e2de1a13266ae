"""FedES's parts against loops over entries, and what its stages do."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import permutations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor
from torch.nn import functional as F

from flnl.config import compose
from flnl.core.errors import UserError
from flnl.core.messages import Broadcast, ClientResult, ClientState, Clock, Combined, Gathered, Oracle, ServerSamples
from flnl.core.parts import Sampling, Setting
from flnl.core.payload import Params, Payload
from flnl.core.training import Training
from flnl.engine.executors.sequential import Sequential
from flnl.engine.local.sgd import LocalTraining
from flnl.evaluation.estimates import by_client, summary
from flnl.evaluation.evaluator import Evaluator
from flnl.methods.fedes.aggregator import QualityMean
from flnl.methods.fedes.contribution import OnBenchmark
from flnl.methods.fedes.exchange import (
    ClientQualities,
    ClientQuality,
    CriticalityRanks,
    Quality,
    QualityState,
    UnsureShare,
)
from flnl.methods.fedes.gradient import SelectiveDecay
from flnl.methods.fedes.sampler import OfQuality
from flnl.methods.fedes.selective_decay import ranks
from flnl.parts.batches import Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from flnl.record.run import RunRecord
from tests.properties.runs import assembled, run
from tests.registry import BY_NAME
from tests.toys import ONE_STEP, START, composed, equal, fitted, method, mlp, network, random_federation, stage, task

BENCHMARK = OnBenchmark(memory=0.5, keep=0.75, gain=0.25, temperature=1.0, permutations=10, tolerance=0.005)
EXCHANGE = Quality(
    indicator="emd_sign",
    sign="mean",
    scope="dims_2_4",
    emd="exact",
    norm="none",
    floor=0.0,
    confidence=0.7,
    benchmark=BENCHMARK,
    stage=1,
)


STEPS = {1: 3, 4: 5, 7: 12}
SIZES = {1: 30, 4: 10, 7: 60}


def models(rng: np.random.Generator, *moves: float) -> tuple[Params, dict[int, Params]]:
    """A received model and one a client, 3 · number + 1, that moved it by so much."""
    received = {"w": torch.from_numpy(rng.normal(size=(4, 5))), "b": torch.from_numpy(rng.normal(size=4))}
    return received, {
        3 * i + 1: {name: p + m * torch.from_numpy(rng.normal(size=p.shape)) for name, p in received.items()}
        for i, m in enumerate(moves)
    }


def gathered(
    received: Params,
    combined: Params,
    sent: Mapping[int, Params],
    *aid: Any,
    steps: Mapping[int, int] = STEPS,
    sizes: Mapping[int, int] = SIZES,
    round: int = 0,
    lengths: tuple[int, ...] = (1, 3),
) -> Gathered:
    """The last round of stage 1, unless it is longer."""
    results = [
        ClientResult(c, sizes[c], model, ClientState(), Payload(), 0.0, steps[c], True) for c, model in sent.items()
    ]
    return Gathered(Broadcast(round, 1, received, Payload(), lengths), results, Combined(combined), Payload(*aid), 1)


def by_hand(received: Params, model: Params) -> list[float]:
    return sorted(
        abs((float(a) - float(b)) * float(b))
        for a, b in zip(*(m["w"].flatten() for m in (model, received)), strict=True)
    )


@pytest.mark.parametrize("indicator", ["emd_sign", "emd", "mean"])
def test_quality_is_that_of_a_loop_over_entries(indicator: Any) -> None:
    received, sent = models(np.random.default_rng(0), 0.1, 1.0, 0.4)
    combined = next(iter(models(np.random.default_rng(5), 0.5)[1].values()))
    combined = {name: received[name] + combined[name] * 0.2 for name in received}
    state = replace(EXCHANGE, indicator=indicator).gathered(EXCHANGE.init(9, {}), gathered(received, combined, sent))
    server, d = by_hand(received, combined), {}
    for client, model in sent.items():
        g = by_hand(received, model)
        distance = sum(abs(a - b) for a, b in zip(g, server, strict=True)) / len(g)
        sign = 1 if sum(g) > sum(server) else -1
        d[client] = {"emd_sign": sign * distance, "emd": distance, "mean": sum(g) / len(g)}[indicator]
    if indicator == "emd_sign":
        assert min(d.values()) < 0 < max(d.values())  # or the sign would say nothing here
    low, high = min(d.values()), max(d.values())
    for client, value in d.items():
        assert float(state.indicator[client]) == pytest.approx(value)
        assert float(state.rho[client]) == pytest.approx((value - low) / (high - low), abs=1e-12)
    assert state.assessed.nonzero()[:, 0].tolist() == [1, 4, 7]
    others = [float(state.rho[c]) for c in range(9) if c not in d]
    assert others == pytest.approx([np.mean([float(state.rho[c]) for c in d])] * 6)


def test_per_step_divides_by_the_steps_of_each_client_and_by_their_mean_over_samples() -> None:
    received, sent = models(np.random.default_rng(0), 0.1, 1.0, 0.4)
    combined = next(iter(models(np.random.default_rng(5), 0.5)[1].values()))
    start = EXCHANGE.init(9, {})
    found = replace(EXCHANGE, norm="per_step").gathered(start, gathered(received, combined, sent))
    mean = (30 * 3 + 10 * 5 + 60 * 12) / 100
    server = [g / mean for g in by_hand(received, combined)]
    for client, model in sent.items():
        g = [entry / STEPS[client] for entry in by_hand(received, model)]
        distance = sum(abs(a - b) for a, b in zip(g, server, strict=True)) / len(g)
        expected = distance if sum(g) > sum(server) else -distance
        assert float(found.indicator[client]) == pytest.approx(expected)
    alike = replace(EXCHANGE, norm="per_step").gathered(
        start, gathered(received, combined, sent, steps=dict.fromkeys(STEPS, 4))
    )
    plain = EXCHANGE.gathered(start, gathered(received, combined, sent))
    assert torch.allclose(alike.rho, plain.rho)
    assert not torch.allclose(found.rho, plain.rho, atol=0.01)
    idle = {**STEPS, 4: 0}  # trained on nothing: it did not move, and nothing is divided by 0
    rested = replace(EXCHANGE, norm="per_step").gathered(start, gathered(received, combined, sent, steps=idle))
    assert torch.isfinite(rested.rho).all()


def test_clients_that_move_alike_a_step_are_at_no_distance_of_the_server() -> None:
    """Whatever their steps and sizes: each moves by τ u, and their mean by ``Σ n τ / Σ n`` u."""
    rng = np.random.default_rng(2)
    received, u = ({"w": torch.from_numpy(rng.normal(size=(4, 5)))} for _ in range(2))
    sent = {c: {"w": received["w"] + steps * u["w"]} for c, steps in STEPS.items()}
    count = sum(SIZES.values())
    combined = {"w": sum((SIZES[c] / count * model["w"] for c, model in sent.items()), torch.zeros(4, 5))}
    of = gathered(received, combined, sent)
    found = replace(EXCHANGE, indicator="emd", norm="per_step").gathered(EXCHANGE.init(9, {}), of)
    assert found.indicator[list(STEPS)].tolist() == pytest.approx([0, 0, 0], abs=1e-12)
    plain = replace(EXCHANGE, indicator="emd").gathered(EXCHANGE.init(9, {}), of)
    assert plain.indicator[list(STEPS)].min() > 0.1


def test_steps_of_the_comparison_are_kept() -> None:
    received, sent = models(np.random.default_rng(0), 0.1, 1.0, 0.4)
    state = EXCHANGE.gathered(EXCHANGE.init(9, {}), gathered(received, received, sent))
    assert state.steps[[1, 4, 7]].tolist() == [3, 5, 12]
    assert torch.isnan(state.steps[[0, 2, 3, 5, 6, 8]]).all()


# ----------------------------------------------------------------------------------------- indicators that are helped


def by_norm(params: Params) -> tuple[float, float]:
    """Accuracy and loss of a model on samples that only this function knows."""
    size = float(params["w"].square().sum())
    return 1 / (1 + size), size


@pytest.mark.parametrize("indicator", ["sfedavg_phi", "fair_qhat"])
def test_models_are_scored_in_every_round_of_the_stage_and_clients_judged_in_the_last(indicator: Any) -> None:
    exchange = replace(EXCHANGE, indicator=indicator)
    assert exchange.aid == (ServerSamples,)
    received, first = models(np.random.default_rng(0), 0.1, 1.0, 0.4)
    _, second = models(np.random.default_rng(1), 0.5, 0.3, 0.8)
    sent = [
        gathered(received, received, m, ServerSamples(by_norm), round=r, lengths=(2, 3))
        for r, m in enumerate((first, second))
    ]
    assert [exchange.wants_models(each.broadcast.clock) for each in sent] == ["after", "after"]
    assert exchange.wants_models(Clock(2, 2, (2, 3))) == "no"
    once = exchange.gathered(exchange.init(9, {}), sent[0])
    assert not once.known
    assert once.rho.tolist() == [1.0] * 9
    twice = exchange.gathered(once, sent[1])
    if indicator == "fair_qhat":
        drops = [{c: by_norm(received)[1] - by_norm(m)[1] for c, m in each.items()} for each in (first, second)]
        worth = {c: (0.5 * drops[0][c] + drops[1][c]) / 1.5 for c in first}
        scaled = worth
    else:

        def value(each: Mapping[int, Params], *members: int) -> float:
            mean = {"w": torch.stack([each[c]["w"] for c in members]).mean(0)} if members else received
            return by_norm(mean)[0]

        worth = dict.fromkeys(first, 1 / 9)
        for each in (first, second):
            for c in each:
                added = [
                    value(each, *order[: order.index(c) + 1]) - value(each, *order[: order.index(c)])
                    for order in permutations(each)
                ]
                worth[c] = 0.75 * worth[c] + 0.25 * sum(added) / 6
        scaled = {c: float(np.exp(v)) for c, v in worth.items()}
    low, high = min(scaled.values()), max(scaled.values())
    for c, v in worth.items():
        assert float(twice.indicator[c]) == pytest.approx(v)
        assert float(twice.rho[c]) == pytest.approx((scaled[c] - low) / (high - low))
    assert twice.assessed.nonzero()[:, 0].tolist() == [1, 4, 7]


def test_a_client_whose_loss_was_never_finite_gets_the_mean_quality_of_the_others() -> None:
    """A model may have finite parameters and an infinite loss; it must not end the run at the comparison."""

    def diverging(params: Params) -> tuple[float, float]:
        accuracy, loss = by_norm(params)
        return accuracy, math.inf if torch.equal(params["w"], broken) else loss

    exchange = replace(EXCHANGE, indicator="fair_qhat")
    received, sent = models(np.random.default_rng(0), 0.1, 1.0, 0.4)
    broken = sent[4]["w"]
    state = exchange.init(9, {})
    for r in range(2):
        state = exchange.gathered(
            state, gathered(received, received, sent, ServerSamples(diverging), round=r, lengths=(2, 3))
        )
    assert state.assessed.nonzero()[:, 0].tolist() == [1, 7]
    assert sorted(state.rho[[1, 7]].tolist()) == [0, 1]
    assert state.rho[4] == 0.5
    nobody = exchange.gathered(
        exchange.init(9, {}),
        gathered(received, received, {4: sent[4]}, ServerSamples(diverging), round=1, lengths=(2, 3)),
    )
    assert not nobody.known


def test_an_oracle_tells_the_truth_unscaled() -> None:
    exchange = replace(EXCHANGE, indicator="oracle")
    assert exchange.aid == (Oracle,)
    assert EXCHANGE.aid == ()
    received, sent = models(np.random.default_rng(0), 0.1, 1.0, 0.4)
    of = gathered(received, received, sent, Oracle({1: 0.5, 4: 0.9, 7: 0.6}))
    state = exchange.gathered(exchange.init(8, {}), of)
    assert state.rho[[1, 4, 7]].tolist() == [0.5, 0.9, 0.6]
    assert state.rho[0].item() == pytest.approx(2 / 3)
    floored = replace(exchange, floor=0.7).gathered(exchange.init(8, {}), of)
    assert floored.rho[[1, 4, 7]].tolist() == [0.7, 0.9, 0.7]


def test_an_oracle_makes_a_run_an_upper_bound_that_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*BY_NAME["fedes_of_an_oracle"].words, "executor=sequential"]
    ran = run(words, tmp_path / "run")
    said = capsys.readouterr().err
    assert "upper bound, not a method" in said
    assert "fedes (upper bound)" in said
    assert "truth" in ran.record["upper_bound"]
    assert RunRecord.open(ran.folder).title.startswith("fedes (upper bound) on digits")
    assert ran.record["clients"]["quality"] == pytest.approx(ran.record["clients"]["true_quality"])
    assert ran.record["metrics"]["quality_error"] == pytest.approx(0)
    plain = run(BY_NAME["fedes"].words, tmp_path / "plain")
    assert "upper_bound" not in plain.record
    assert "upper bound" not in capsys.readouterr().err
    assert RunRecord.open(plain.folder).title.startswith("fedes on digits")
    assert all(s > 0 for s in plain.record["clients"]["steps"])


def test_what_an_indicator_needs_and_there_is_not_is_said_before_any_round(tmp_path: Path) -> None:
    words = BY_NAME["fedes_of_drops"].words
    with (
        pytest.raises(UserError, match=r"set eval\.benchmark=0\.2"),
        assembled(words, tmp_path / "run", "eval.benchmark=0"),
    ):
        pass
    with assembled(BY_NAME["fedes_of_an_oracle"].words, tmp_path / "other") as parts:
        unknown = replace(parts.federation, truth=None)
        with pytest.raises(UserError, match="true labels"):
            Evaluator(unknown, parts.evaluator.network, parts.method).aid(parts.method.aid)


def test_models_are_scored_on_what_the_server_holds_and_tested_on_the_rest() -> None:
    net = network(mlp(4, 3))
    data = random_federation([9, 8])
    held = np.array([0, 3, 4, 11])
    evaluator = Evaluator(replace(data, benchmark=held), net, method(stage()))
    params = {name: p + 0.3 for name, p in net.params().items()}
    scores, accuracies = evaluator.aid((ServerSamples,)).one(ServerSamples).score(params), evaluator.model(params)
    net.load(params)
    images, labels = data.dataset.test.read(torch.arange(17)), torch.from_numpy(data.dataset.test_labels)
    logits, rest = net.scored(images.double()), np.setdiff1d(np.arange(17), held)
    for where, (accuracy, loss) in ((held, scores), (rest, (accuracies["accuracy"], accuracies["test_loss"]))):
        assert accuracy == pytest.approx(float((logits[where].argmax(1) == labels[where]).double().mean()))
        assert loss == pytest.approx(float(F.cross_entropy(logits[where], labels[where])))
    assert scores[1] != pytest.approx(accuracies["test_loss"])


@dataclass(frozen=True)
class Recorded(Sequential):
    """Keeps the model that each cohort was sent."""

    sent: list[Params] = field(default_factory=list)

    def map(self, job: Any, tasks: Any, reduce: Any) -> Any:
        self.sent.append(tasks[0].broadcast.params)
        return super().map(job, tasks, reduce)


@pytest.mark.parametrize("restart", [True, False])
def test_a_restart_begins_with_the_initial_model_and_what_was_found(restart: bool, tmp_path: Path) -> None:
    words = [*BY_NAME["fedes"].words, "method.sampler.fraction=1.0"]
    with assembled(words, tmp_path / "run", f"method.restart={str(restart).lower()}") as parts:
        recorded = Recorded(parts.evaluator.network)
        results = parts.results(executor=recorded)
        initial = parts.state.server.params
        assert equal(recorded.sent[0], initial)
        assert not equal(recorded.sent[1], initial)
        assert equal(recorded.sent[2], initial if restart else results[1].state.server.params)
        assert equal(recorded.sent[3], results[2].state.server.params)
        rho = [r.state.server.exchanges["quality"].rho for r in results]
        assert torch.equal(rho[1], rho[-1])
        assert ("from the initial model" in parts.method.stages[1].describe()) == restart


def test_frozen_weights_do_not_count_in_the_distance() -> None:
    received, sent = models(np.random.default_rng(0), 0.1, 1.0, 0.4)
    frozen = {"f": torch.ones(9, 9, dtype=torch.float64)}
    with_frozen = gathered(received | frozen, received | frozen, {c: model | frozen for c, model in sent.items()})
    found, without = (
        EXCHANGE.gathered(EXCHANGE.init(9, {}), one) for one in (with_frozen, gathered(received, received, sent))
    )
    assert torch.equal(found.rho, without.rho)
    torch.testing.assert_close(found.indicator, without.indicator, equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(
    ("indicator", "sign"), [("emd_sign", "mean"), ("emd_sign", "gmm1d"), ("emd", "mean"), ("mean", "mean")]
)
def test_clients_are_of_equal_quality_if_none_changes_a_weight(indicator: Any, sign: Any) -> None:
    """As where all units of a network are dead, which trains the biases alone."""
    received, sent = models(np.random.default_rng(0), 0.1, 1.0, 0.4)
    sent = {client: model | {"w": received["w"]} for client, model in sent.items()}
    exchange = replace(EXCHANGE, indicator=indicator, sign=sign)
    found = exchange.gathered(exchange.init(9, {}), gathered(received, sent[1], sent))
    assert found.rho.tolist() == [1.0] * 9
    assert found.indicator[list(sent)].tolist() == [0.0] * 3


def test_cheaper_distances_come_near_the_exact_one() -> None:
    received, sent = models(np.random.default_rng(0), 0.1, 1.0, 0.4)
    exact, *others = (
        replace(EXCHANGE, emd=how).gathered(EXCHANGE.init(9, {}), gathered(received, received, sent)).rho
        for how in ("exact", "quantiles", "subset")
    )
    for rho in others:
        assert torch.allclose(rho, exact, atol=0.01)


def test_a_floor_holds_and_confidence_needs_no_model() -> None:
    received, sent = models(np.random.default_rng(0), 0.1, 1.0, 0.4)
    low = replace(EXCHANGE, floor=0.3).gathered(EXCHANGE.init(9, {}), gathered(received, received, sent))
    assert float(low.rho.min()) == pytest.approx(0.3)
    unsure = replace(EXCHANGE, indicator="confidence")
    last = Clock(1, 1, (2, 3))
    asked = [(EXCHANGE, last), (unsure, last), (EXCHANGE, Clock(0, 1, (2, 3))), (EXCHANGE, Clock(4, 2, (2, 3)))]
    assert [exchange.wants_models(clock) for exchange, clock in asked] == ["after", "no", "no", "no"]
    state = unsure.receive(unsure.init(3, {}), {c: Payload(UnsureShare(v)) for c, v in enumerate((0.1, 0.2, 0.9))}, 1)
    assert float(state.rho[0]) == 1.0
    assert float(state.rho[2]) == 0.0
    assert unsure.receive(state, {0: Payload()}, 1) is state


def test_a_stage_without_rounds_to_compare_clients_in_is_a_caution() -> None:
    """Then the run is one of plain averaging."""
    setting = Setting({0: 10}, (2, 6), ONE_STEP, "method.exchange.quality")
    assert EXCHANGE.caution(setting) is None
    caution = EXCHANGE.caution(replace(setting, lengths=(0, 8)))
    assert caution is not None
    assert caution.startswith("method.exchange.quality compares clients in the last round of stage 1, which has none")


def test_nothing_is_sent_before_it_is_known() -> None:
    state = EXCHANGE.init(2, {})
    assert EXCHANGE.send(state, 0, START) == ()
    assert EXCHANGE.known(state)[0].value.tolist() == [1, 1]
    known = replace(state, rho=torch.tensor([0.2, 1.0]), assessed=torch.tensor([True, True]))
    assert [EXCHANGE.send(known, c, START)[0].value for c in (0, 1)] == pytest.approx([0.2, 1.0])  # to each its own


def test_ranks_count_all_entries_once() -> None:
    rng = torch.Generator().manual_seed(1)
    g = {"a": torch.rand(3, 4, generator=rng), "b": torch.randint(0, 3, (5, 2), generator=rng) / 4}
    assert ranks({}) == {}
    assert sorted(int(i) for p in ranks(g).values() for i in p.flatten()) == list(range(22))


# -------------------------------------------------------------------------------------------------------- training

RHO = 0.3
SEGD = SelectiveDecay(mask="static", target="update", scope="dims_2_4", enabled=True)
TRAINING = Training(lr=0.1, momentum=0.9, weight_decay=0.05, batch_size=100, epochs=4, lr_decay=1.0)


@pytest.mark.parametrize("target", ["update", "grad"])
@pytest.mark.parametrize("mask", ["static", "per_step"])
def test_training_is_that_of_a_loop(mask: Any, target: Any) -> None:
    net = network(mlp(4, 3, norm=True))
    samples = random_federation([9]).samples(0)
    place = ranks({n: p for n, p in net.params().items() if p.dim() == 2})
    work = task(
        net.module,
        samples,
        extras=Payload(ClientQuality(RHO)),
        state=ClientState(extras=Payload(CriticalityRanks(place))),
    )
    gradient = replace(SEGD, mask=mask, target=target)
    result = LocalTraining(TRAINING, Plain(), {"cross_entropy": CrossEntropy()}, gradient, {})(net, work)

    other = mlp(4, 3, norm=True).double()
    velocity: dict[str, Tensor] = {}
    images, labels = samples.read().double(), samples.given
    order = torch.from_numpy(np.concatenate([np.arange(9)]))
    for _ in range(4):
        other.zero_grad()
        F.cross_entropy(other(images[order]), labels[order]).backward()
        named = dict(other.named_parameters())
        g = {n: p.grad for n, p in named.items() if p.grad is not None}
        weights = [n for n in named if named[n].dim() == 2]
        if mask == "static":
            masks = {n: place[n] < int(RHO * 35) for n in weights}
        else:
            scores = torch.cat([(g[n] * named[n].detach()).abs().flatten() for n in weights])
            threshold = scores.sort(descending=True).values[int(RHO * 35) - 1]
            masks = {n: (g[n] * named[n].detach()).abs() >= threshold for n in weights}
        for n, p in named.items():
            own = RHO * masks[n] * g[n] if target == "grad" and n in masks else g[n]
            v = own + 0.05 * p.detach()
            velocity[n] = v if n not in velocity else 0.9 * velocity[n] + v
            scale = torch.ones_like(p) if target == "grad" else RHO * masks.get(n, torch.ones_like(p))
            with torch.no_grad():
                p.sub_(0.1 * scale * velocity[n])
    assert sum(p.numel() for n, p in place.items()) == 35
    assert result.params is not None
    for name, p in other.named_parameters():
        assert torch.allclose(result.params[name], p, atol=1e-12), name


def test_a_client_of_no_quality_rests_and_one_without_ranks_is_slowed() -> None:
    net = network(mlp(4, 3))
    samples = random_federation([9]).samples(0)
    start = net.params()

    def trained(*extras: Any, kept: Mapping[str, Tensor] | None = None, gradient: Any = SEGD) -> Params:
        net.load(start)
        state = ClientState(extras=Payload() if kept is None else Payload(CriticalityRanks(kept)))
        work = task(net.module, samples, extras=Payload(*extras), state=state)
        found = LocalTraining(TRAINING, Plain(), {"cross_entropy": CrossEntropy()}, gradient, {})(net, work).params
        assert found is not None
        return found

    place = ranks({n: p for n, p in start.items() if p.dim() == 2})
    plain = trained(gradient=None)
    assert equal(trained(ClientQuality(0.0), kept=place), start)
    assert equal(trained(ClientQuality(1.0), kept=place), plain)
    assert equal(trained(kept=place), plain)
    assert equal(trained(ClientQuality(0.3), kept=place, gradient=replace(SEGD, enabled=False)), plain)
    slowed = trained(ClientQuality(0.5))
    assert all(not torch.equal(slowed[n], start[n]) and not torch.equal(slowed[n], plain[n]) for n in start)


# ---------------------------------------------------------------------------------------------------------- server


def result(client: int, count: int, value: float) -> ClientResult:
    return ClientResult(client, count, {"w": torch.full((2,), value)}, ClientState(), Payload(), 0.0, 1, True)


def test_the_mean_is_weighted_by_samples_and_quality() -> None:
    known = Payload(ClientQualities(torch.tensor([0.5, 0.0, 1.0], dtype=torch.float64)))
    received = {"w": torch.zeros(2)}
    sent = [result(0, 40, 1.0), result(1, 10, 9.0), result(2, 60, 3.0)]
    for weights, expected in (("quality", (20 * 1 + 60 * 3) / 80), ("samples", (40 + 90 + 180) / 110)):
        mean = QualityMean(weights)  # type: ignore[arg-type]
        blocks = [mean.block(received, sent[:1], known), mean.block(received, sent[1:], known)]
        assert mean.combine(received, blocks, known).params["w"].tolist() == pytest.approx([expected] * 2)
    mean = QualityMean("quality")
    assert mean.combine(received, [mean.block(received, sent[1:2], known)], known).params is received


def test_clients_below_half_are_dropped_and_somebody_is_left() -> None:
    sampler = compose.load(["method=fedes", "method/sampler=fedes_of_quality", "fraction=1.0"]).method.sampler
    assert (sampler.threshold, sampler.fraction) == (0.5, 1.0)

    def cohorts(rho: list[float], fraction: float = 1.0) -> set[int]:
        known = Payload(ClientQualities(torch.tensor(rho)))
        clients = (0, 1, 3)
        sampling = [
            Sampling(1, Clock(r, 1), clients, dict.fromkeys(clients, 1), known, lambda job, ids: []) for r in range(20)
        ]
        return {client for each in sampling for client in OfQuality(fraction, 0.5)(each)}

    assert cohorts([0.5, 0.49, 1.0, 0.9]) == {0, 3}
    assert cohorts([0.5, 0.49, 1.0, 0.9], 0.34) == {0, 3}
    assert cohorts([0.1, 0.3, 1.0, 0.3]) == {1, 3}


# ----------------------------------------------------------------------------------------------------------- whole


def test_clients_are_compared_once_and_the_record_says_how_well() -> None:
    ran = composed("method=fedes", "method.s1=2", "method.T=2", "fraction=1.0", "noise=fedes")
    parts = [r.state.server.exchanges["quality"] for r in ran.rounds]
    assert all(isinstance(p, QualityState) for p in parts)
    assert [p.known for p in parts] == [False, True, True, True]
    rho = parts[-1].rho.numpy()
    assert (rho.min(), rho.max()) == (0, 1)
    last = ran.rounds[-1].state
    truth = ran.federation.truth
    assert truth is not None
    right = [
        float((ran.federation.samples(c).given == truth[ran.federation.samples(c).index]).double().mean())
        for c in range(4)
    ]
    findings = ran.method.findings(last, ran.federation.sizes)["exchange/quality"]
    found = summary(ran.federation, findings)
    assert found["quality_error"] == pytest.approx(np.mean((rho - right) ** 2))
    assert found["quality_rank_correlation"] == pytest.approx(spearmanr(rho, right).statistic)
    assert by_client(ran.federation, findings)["true_quality"] == pytest.approx(right)
    assert ran.method.findings(ran.rounds[0].state, ran.federation.sizes) == {"exchange/quality": ()}
    ours = composed("method=fedavg", "rounds=2", "fraction=1.0", "noise=fedes").rounds[-1].state.server.params
    assert equal(ran.rounds[1].state.server.params, ours)
    before, models_of = ran.rounds[0].state.server.params, last.client(0).extras.one(CriticalityRanks).place
    assert {n: p.shape for n, p in models_of.items()} == {n: p.shape for n, p in before.items() if p.dim() == 2}


def test_a_prediction_is_unsure_below_the_confidence_that_was_asked_for() -> None:
    """Reported in the last round of the stage alone."""
    net = network(mlp(4, 3))
    samples = random_federation([9]).samples(0)
    largest = net.probabilities(samples).amax(1).sort().values
    work = task(net.module, samples)
    last = replace(work, broadcast=replace(work.broadcast, lengths=(work.broadcast.round + 1, 1)))
    for count, confidence in ((0, 0.0), (4, float(largest[3] + largest[4]) / 2), (9, 1.0)):
        asked = replace(EXCHANGE, indicator="confidence", confidence=confidence)
        up, _ = asked.report(net, last, fitted(net.params()))
        assert up.one(UnsureShare).value == pytest.approx(count / 9)
        early = replace(last, broadcast=replace(last.broadcast, lengths=(work.broadcast.round + 2, 1)))
        assert len(asked.report(net, early, fitted(net.params()))[0]) == 0


def test_kept_ranks_are_of_the_move_times_what_was_received() -> None:
    net = network(mlp(4, 3))
    work = task(net.module, random_federation([9]).samples(0))
    last = replace(work, broadcast=replace(work.broadcast, lengths=(work.broadcast.round + 1, 1)))
    received, rng = work.broadcast.params, torch.Generator().manual_seed(1)
    trained = {n: p + torch.randn(p.shape, generator=rng, dtype=p.dtype) for n, p in received.items()}
    place = EXCHANGE.report(net, last, fitted(trained))[1].one(CriticalityRanks).place
    by_loop = {n: ((trained[n] - p) * p).abs() for n, p in received.items() if p.dim() == 2}
    order = torch.cat([g.flatten() for g in by_loop.values()]).argsort(descending=True)
    assert torch.cat([p.flatten() for p in place.values()]).argsort().tolist() == order.tolist()


def test_frozen_weights_have_no_rank_and_no_mask() -> None:
    """They would take places of the share that is trained on, and have no update to mask."""
    net = network(mlp(4, 3))
    first, *rest = [n for n, p in net.trainable().items() if p.dim() == 2]
    dict(net.module.named_parameters())[first].requires_grad = False
    work = task(net.module, random_federation([9]).samples(0))
    last = replace(work, broadcast=replace(work.broadcast, lengths=(work.broadcast.round + 1, 1)))
    trained = {n: p + 1 for n, p in work.broadcast.params.items()}
    scopes: tuple[tuple[Literal["dims_2_4", "all"], list[str]], ...] = (("dims_2_4", rest), ("all", [*net.trainable()]))
    for scope, names in scopes:
        place = replace(EXCHANGE, scope=scope).report(net, last, fitted(trained))[1].one(CriticalityRanks).place
        assert list(place) == names
        assert sorted(torch.cat([p.flatten() for p in place.values()]).tolist()) == [
            *range(sum(map(torch.numel, place.values())))
        ]


@pytest.mark.parametrize("scope", ["dims_2_4", "all"])
def test_a_network_with_batch_norm_trains_with_every_scope(scope: str, tmp_path: Path) -> None:
    """Its running statistics are no parameters: they are not ranked, and have no update to mask."""
    words = [one for one in BY_NAME["fedes"].words if not one.startswith("model")]
    ran = run(words, tmp_path / "run", "model=resnet8", "model.width=2", f"method.cop_params={scope}")
    kept = [state.extras.get(CriticalityRanks) for state in ran.state.clients.values()]
    names = {n for n, p in ran.state.server.params.items() if p.is_floating_point() and "running" not in n}
    wanted = {n for n in names if scope == "all" or ran.state.server.params[n].dim() > 1}
    assert [set(one.place) for one in kept if one is not None] == [wanted] * 8
    assert ran.record["status"] == "finished"
