"""FAIR: its vector, who is selected, how models are weighted, and what a loss measured by clients changes."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flnl.config import compose
from flnl.core.errors import UserError
from flnl.core.execution import BLOCK
from flnl.core.findings import EstimatedQuality
from flnl.core.messages import Broadcast, ClientResult, ClientState, Clock, Combined, Gathered, ServerSamples
from flnl.core.parts import Sampling
from flnl.core.payload import Params, Payload
from flnl.methods.fair.aggregator import LearningQualityMean
from flnl.methods.fair.exchange import LearningQuality, LearningQualityState, LocalDrop, QualityEstimates
from flnl.methods.fair.sampler import TopQuality
from flnl.numerics.losses import sample_losses
from flnl.parts.aggregators.mean import Mean
from tests.properties.runs import assembled, run
from tests.registry import BY_NAME, TINY
from tests.toys import equal, fitted, mlp, network, random_federation, task
from tests.vectors.vectors import federated

EXCHANGE = LearningQuality("benchmark", 0.5)
LOCAL = replace(EXCHANGE, loss_on="local")
BEST, SKIP = LearningQualityMean("best"), LearningQualityMean("skip")
NONE = -math.inf


def nobody(*_: Any) -> list[Any]:
    raise AssertionError("nobody is asked")


def known(estimates: Sequence[float], *, sized: bool = False) -> Payload:
    return Payload(QualityEstimates(torch.tensor(estimates, dtype=torch.float64), sized))


def sampling(estimates: Sequence[float], round: int, clients: Sequence[int] | None = None) -> Sampling:
    """A round of these clients, by default of all."""
    chosen = tuple(range(len(estimates)) if clients is None else clients)
    return Sampling(1, Clock(round, 1), chosen, dict.fromkeys(chosen, 1), known(estimates), nobody)


def point(value: float, count: int = 0) -> Params:
    return {"w": torch.tensor([value], dtype=torch.float64), "n": torch.tensor(count)}


def results(
    models: Sequence[Params], samples: Sequence[int] | None = None, drops: Mapping[int, float] | None = None
) -> list[ClientResult]:
    """What clients 0, 1, ... send."""
    return [
        ClientResult(
            client,
            samples[client] if samples else 1,
            model,
            ClientState(),
            Payload(LocalDrop(drops[client])) if drops else Payload(),
            0.0,
            1,
            True,
        )
        for client, model in enumerate(models)
    ]


def gathered(sent: Sequence[ClientResult], received: float, shift: float = 0.0) -> Gathered:
    """A round in which a model's loss on clean samples is its parameter."""

    def score(params: Params) -> tuple[float, float]:
        return math.nan, params["w"].item() + shift

    return Gathered(Broadcast(0, 1, point(received)), sent, None, Payload(ServerSamples(score)), 1)


def estimates(exchange: LearningQuality, state: LearningQualityState) -> list[float]:
    (fact,) = exchange.known(state)
    assert isinstance(fact, QualityEstimates)
    return [float(value) for value in fact.value]


def combined(
    models: Sequence[Params],
    quality: Sequence[float],
    samples: Sequence[int] | None = None,
    part: LearningQualityMean = BEST,
    *,
    sized: bool = False,
    cut: int = BLOCK,
) -> Combined:
    """What the aggregator makes of these models in blocks of ``cut``; the received model has other values."""
    received = {name: torch.full_like(p, 77) for name, p in models[0].items()}
    sent, facts = results(models, samples), known(quality, sized=sized)
    blocks = [part.block(received, sent[first : first + cut], facts) for first in range(0, len(sent), cut)]
    return part.combine(received, blocks, facts)


# ------------------------------------------------------------------------------------------------------------ vector


def test_vector_of_quality_selection_and_weights() -> None:
    """Qualities of a round from its losses; estimates from a history; the best clients; the weights of those."""
    v = federated("fair.quality")
    before, after = v.inputs["loss_before"][0], v.inputs["loss_after"]
    now = EXCHANGE.gathered(EXCHANGE.init(4, {}), gathered(results([point(loss) for loss in after]), before))
    assert estimates(EXCHANGE, now) == v.approx("q_now")

    exchange = LearningQuality("benchmark", v.inputs["rho"])
    state = exchange.init(4, {})
    for r in range(3):
        trained = {client: row[r] for client, row in enumerate(v.inputs["history"]) if row[r] is not None}
        sent = [replace(results([point(-q)])[0], client=client) for client, q in trained.items()]
        state = exchange.gathered(state, gathered(sent, 0.0))
    assert estimates(exchange, state) == v.approx("q_hat")

    size = v.inputs["keep"] / 4
    cohort = TopQuality(size, 0.0)(sampling(estimates(exchange, state), 2))
    assert sorted(cohort) == v.expected["selected"]
    facts, sent = Payload(*exchange.known(state)), results([point(k) for k in range(4)], v.inputs["n"])
    chosen = [sent[client] for client in sorted(cohort)]
    result = BEST.combine(point(77), [BEST.block(point(77), chosen, facts)], facts)
    weights = {client: weight / sum(result.weights.values()) for client, weight in result.weights.items()}
    assert [weights.get(client, 0.0) for client in range(4)] == v.approx("weights")
    assert result.params["w"].item() == pytest.approx(3 * v.expected["weights"][3])


# ------------------------------------------------------------------------------------------------------ the exchange


def test_a_loss_that_is_larger_everywhere_changes_nothing() -> None:
    sent = results([point(v) for v in (0.3, 0.9, 0.1)])
    plain, shifted = (EXCHANGE.gathered(EXCHANGE.init(3, {}), gathered(sent, 0.5, shift)) for shift in (0.0, 7.0))
    assert estimates(EXCHANGE, plain) == pytest.approx([0.2, -0.4, 0.4])
    assert estimates(EXCHANGE, shifted) == pytest.approx(estimates(EXCHANGE, plain))


def test_clients_without_an_estimate_are_behind_all_others() -> None:
    """Those who never trained, and those whose last model had no finite loss, until they train again."""
    state = EXCHANGE.init(4, {})
    assert estimates(EXCHANGE, state) == [NONE] * 4
    assert EXCHANGE.findings(state, {}, Payload()) == ()
    state = EXCHANGE.gathered(state, gathered(results([point(0.4), point(0.9)]), 0.5))
    assert estimates(EXCHANGE, state) == pytest.approx([0.1, -0.4, NONE, NONE])
    for bad in (math.inf, math.nan):
        broken = EXCHANGE.gathered(state, gathered(results([point(bad), point(0.2)]), 0.5))
        assert estimates(EXCHANGE, broken) == pytest.approx([NONE, (0.3 - 0.2) / 1.5, NONE, NONE])
        mended = EXCHANGE.gathered(broken, gathered(results([point(0.3)]), 0.5))
        assert estimates(EXCHANGE, mended)[0] == pytest.approx((0.2 + 0.25 * 0.1) / 1.25)


def test_estimated_quality_is_recorded_between_0_and_1() -> None:
    state = EXCHANGE.gathered(EXCHANGE.init(4, {}), gathered(results([point(v) for v in (0.4, 0.9, 0.6)]), 0.5))
    (quality,) = EXCHANGE.findings(state, {}, Payload())
    assert isinstance(quality, EstimatedQuality)
    assert quality.values.tolist() == pytest.approx([1.0, 0.0, 0.6, 1.6 / 3])  # the last one has the others' mean
    assert quality.scores["learning_quality"][:3].tolist() == pytest.approx([0.1, -0.4, -0.1])
    assert math.isnan(quality.scores["learning_quality"][3])


def test_a_client_can_measure_the_loss_itself() -> None:
    """On its own samples and labels, before and after its training; in the original, times their number."""
    module, other = mlp(4, 3).double(), mlp(4, 3).double()
    with torch.no_grad():
        for p in other.parameters():
            p.mul_(1.7)
    samples = random_federation([12]).samples(0)
    labels = torch.arange(12) % 3
    losses = [sample_losses(m(samples.read().double()).detach(), labels).mean().item() for m in (module, other)]
    net, job = network(module), task(module, samples, state=ClientState(labels=labels))
    trained = {name: p.detach().clone() for name, p in other.state_dict().items()}
    net.load(trained)
    up, kept = LOCAL.report(net, job, fitted(trained))
    assert up.one(LocalDrop).value == pytest.approx(losses[0] - losses[1])
    assert len(kept) == 0
    assert EXCHANGE.report(net, job, fitted(trained))[0].get(LocalDrop) is None

    sent = results([point(0), point(0)], [10, 40], {0: 0.3, 1: -0.1})
    state = LOCAL.gathered(LOCAL.init(3, {}), replace(gathered(sent, 0.0), aid=Payload()))
    assert estimates(LOCAL, state) == pytest.approx([3.0, -4.0, NONE])
    assert [fact.sized for exchange in (LOCAL, EXCHANGE) for fact in exchange.known(state)] == [True, False]
    assert (LOCAL.aid, EXCHANGE.aid) == ((), (ServerSamples,))


# ------------------------------------------------------------------------------------------------------- the sampler


@pytest.mark.parametrize(("fraction", "lengths"), [(0.4, [4, 4, 2]), (1.0, [10]), (0.1, [1] * 10)])
def test_every_client_trains_once_before_any_is_selected(fraction: float, lengths: list[int]) -> None:
    part = TopQuality(fraction, 0.5)
    cohorts = [part(sampling([NONE] * 10, round)) for round in range(len(lengths))]
    assert list(map(len, cohorts)) == lengths
    assert sorted(client for cohort in cohorts for client in cohort) == list(range(10))
    later = part(sampling([float(k) for k in range(10)], len(lengths)))
    assert len(set(later)) == len(later) == part.size(10)


def test_then_those_of_the_highest_estimate_are_selected() -> None:
    estimates = [0.1, -0.5, NONE, 0.3, 0.2, -0.1]
    assert sorted(TopQuality(0.5, 0.0)(sampling(estimates, 2))) == [0, 3, 4]
    assert sorted(TopQuality(0.84, 0.0)(sampling(estimates, 2))) == [0, 1, 3, 4, 5]
    assert sorted(TopQuality(0.5, 0.0)(sampling(estimates, 2, (1, 2, 5, 3)))) == [3, 5]


def test_each_place_may_go_to_a_client_drawn_at_random() -> None:
    """The chances of a best client and of any other, for ten clients and four places."""
    part, estimates, rounds = TopQuality(0.4, 0.25), [float(-k) for k in range(10)], 3000
    cohorts = [part(sampling(estimates, round)) for round in range(10, 10 + rounds)]
    assert all(len(set(cohort)) == 4 for cohort in cohorts)
    explored = [
        sum(math.comb(4, k) * 0.25**k * 0.75 ** (4 - k) * share(k) for k in range(5)) for share in (_first, _last)
    ]
    counts = Counter(client for cohort in cohorts for client in cohort)
    for client, expected in ((0, explored[0]), (9, explored[1])):
        deviation = math.sqrt(expected * (1 - expected) / rounds)
        assert abs(counts[client] / rounds - expected) < 4.5 * deviation


def _first(explored: int) -> float:
    """Chance of the best client, if this many of four places are drawn among all who are not in the others."""
    return 1.0 if explored < 4 else 4 / 10


def _last(explored: int) -> float:
    """Chance of the worst client."""
    return explored / (10 - (4 - explored))


@pytest.mark.parametrize(("clients", "places", "share"), [(20, 10, 0.0845), (100, 10, 0.0979)])
def test_fewer_places_leave_the_best_than_are_drawn(clients: int, places: int, share: float) -> None:
    """Of B drawn places B (N - S) / (N - S + B), as any of N - S + B clients may get them: the shares of the card."""
    others = clients - places
    expected = sum(
        math.comb(places, b) * 0.1**b * 0.9 ** (places - b) * b * others / (others + b) for b in range(places + 1)
    )
    assert expected / places == pytest.approx(share, abs=5e-5)
    part, estimates, rounds = TopQuality(places / clients, 0.1), [float(-k) for k in range(clients)], 4000
    passed = clients // places
    left = [sum(k >= places for k in part(sampling(estimates, passed + round))) for round in range(rounds)]
    assert np.mean(left) == pytest.approx(expected, abs=4.5 * float(np.std(left)) / math.sqrt(rounds))


def test_ties_are_broken_at_random() -> None:
    cohorts = {tuple(sorted(TopQuality(0.5, 0.0)(sampling([0.0] * 6, round)))) for round in range(2, 60)}
    assert len(cohorts) > 10


# ---------------------------------------------------------------------------------------------------- the aggregator

QUALITY = [0.4, 0.05, -0.3, 0.8, 0.0, 0.2, 0.1]
SAMPLES = [100, 200, 100, 50, 10, 30, 70]


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_weights_are_samples_times_positive_quality(cut: int) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=7)
    result = combined([point(v, k) for k, v in enumerate(values)], QUALITY, SAMPLES, cut=cut)
    weights = np.array(SAMPLES) * np.maximum(QUALITY, 0)
    assert result.params["w"].item() == pytest.approx(float(np.average(values, weights=weights)))
    assert result.params["n"].item() == 6
    shares = np.array([result.weights[k] for k in range(7)]) / sum(result.weights.values())
    assert shares == pytest.approx(weights / weights.sum())
    assert result.facts == {"rejected": 2.0, "fallback": 0.0}


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_counters_are_those_of_all_clients_whatever_their_weight(cut: int) -> None:
    found = combined([point(float(k), 100 - k) for k in range(6)], [-1.0] * 5 + [2.0], cut=cut).params
    assert equal(found, point(5.0, 100))


def test_a_quality_that_has_the_samples_as_a_factor_counts_them_once() -> None:
    models = [point(v) for v in (1.0, 2.0, 4.0)]
    result = combined(models, [3.0, -1.0, 6.0], [10, 20, 30], sized=True)
    assert result.params["w"].item() == pytest.approx((3 * 1 + 6 * 4) / 9)


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_equal_qualities_give_fedavg_to_the_bit(cut: int) -> None:
    rng = torch.Generator().manual_seed(0)
    models = [{"w": torch.randn(50, generator=rng, dtype=torch.float64)} for _ in range(7)]
    received, mean = {"w": torch.zeros(50, dtype=torch.float64)}, Mean("samples")
    sent = results(models, SAMPLES)
    blocks = [mean.block(received, sent[first : first + cut], Payload()) for first in range(0, 7, cut)]
    plain = mean.combine(received, blocks, Payload()).params
    assert equal(combined(models, [0.3] * 7, SAMPLES, cut=cut).params, plain)
    assert not equal(combined(models, [0.3] * 6 + [0.2], SAMPLES, cut=cut).params, plain)


def test_sizes_times_a_number_change_nothing() -> None:
    models = [point(v) for v in range(7)]
    one, other = (combined(models, QUALITY, [f * n for n in SAMPLES]).params["w"].item() for f in (1, 7))
    assert one == pytest.approx(other)


@pytest.mark.parametrize("cut", [1, 2, 5])
def test_where_no_model_reduced_the_loss_the_best_one_is_taken_or_none(cut: int) -> None:
    models = [point(float(k), k) for k in range(7)]
    quality = [-0.5, -0.1, NONE, 0.0, -0.2, 0.0, -0.3]
    best, skip = (combined(models, quality, SAMPLES, part, cut=cut) for part in (BEST, SKIP))
    assert equal(best.params, models[3])  # of equals the first
    assert {client: weight for client, weight in best.weights.items() if weight} == {3: 1.0}
    assert skip.params["w"].item() == 77
    assert best.facts == skip.facts == {"rejected": 7.0, "fallback": 1.0}


def test_models_without_a_finite_loss_are_never_taken() -> None:
    result = combined([point(1.0), point(2.0)], [NONE, NONE])
    assert result.params["w"].item() == 77
    assert not any(result.weights.values())
    assert combined([point(1.0), point(2.0)], [NONE, 0.1]).params["w"].item() == 2.0


def test_nobody_contributed_leaves_the_model() -> None:
    facts, received = known([0.1, 0.2]), point(3.0, 5)
    assert equal(BEST.combine(received, [], facts).params, received)
    empty = BEST.block(received, [], facts)
    assert equal(BEST.combine(received, [empty, empty], facts).params, received)
    sent = results([point(1.0), point(2.0)])
    blocks = [BEST.block(received, block, facts) for block in (sent[:1], [], sent[1:])]
    assert BEST.combine(received, blocks, facts).params["w"].item() == pytest.approx((0.1 + 2 * 0.2) / 0.3)


# -------------------------------------------------------------------------------------------------------------- runs


def test_a_round_is_weighted_by_its_own_qualities(tmp_path: Path) -> None:
    """Models are judged before they are combined; after the pass over all clients, the best ones train."""
    with assembled(BY_NAME["fair_without_exploration"].words, tmp_path / "run") as parts:
        done = parts.results()
        clients, size = parts.federation.with_data, parts.method.stages[0].sampler.size(8)
        assert sorted(done[0].cohort + done[1].cohort) == sorted(clients)
        for before, after in pairwise(done[1:]):
            values = estimates(EXCHANGE, before.state.server.exchanges["learning_quality"])
            assert set(after.cohort) == set(sorted(clients, key=lambda c: -values[c])[:size])
        states = [result.state.server.exchanges["learning_quality"] for result in done]
        assert int(states[0].drops.trained.sum()) == len(done[0].cohort)
        assert all(0 <= result.metrics["aggregation/rejected"] <= len(result.cohort) for result in done)
        positive = [sum(estimates(EXCHANGE, s)[c] > 0 for c in r.cohort) for s, r in zip(states, done, strict=True)]
        assert [len(r.cohort) - r.metrics["aggregation/rejected"] for r in done] == positive


def test_without_clean_samples_it_says_where_they_come_from(tmp_path: Path) -> None:
    overrides = [*TINY, "method=fair", "rounds=1"]
    with pytest.raises(UserError, match=r"set eval\.benchmark=0\.2"):
        run(overrides, tmp_path / "run")
    assert run([*overrides, "method.loss_on=local"], tmp_path / "other").record["status"] == "finished"


def test_start_record_and_closing_table_show_the_clean_samples(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = [*TINY, "method=fair", "rounds=1", "eval.benchmark=0.2"]
    record = run(overrides, tmp_path / "run").record
    assert record["clean_samples"] > 0
    printed = capsys.readouterr()
    assert f"is given {record['clean_samples']} clean samples of the test set" in printed.err
    assert any("clean samples" in line and f" {record['clean_samples']} " in line for line in printed.out.splitlines())
    for name, other in (("local", "method.loss_on=local"), ("fedavg", "method=fedavg")):
        assert "clean_samples" not in run([*overrides, other], tmp_path / name).record


def test_the_values_of_its_reading_are_the_defaults() -> None:
    method = compose.resolved(compose.load(["method=fair", "experiment=fedes/cifar10_iid"]))["method"]
    exchange, sampler = method["exchange"]["learning_quality"], method["sampler"]
    assert (exchange["loss_on"], exchange["memory"]) == ("benchmark", 0.5)
    assert (sampler["fraction"], sampler["exploration"], method["aggregator"]["nonpositive"]) == (0.5, 0.1, "best")
