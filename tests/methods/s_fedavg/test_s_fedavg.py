"""S-FedAvg: who is selected, what relevances follow from a round's models, and runs with and without clean samples."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flnl.config import compose
from flnl.core.errors import UserError
from flnl.core.findings import EstimatedQuality
from flnl.core.messages import Broadcast, ClientResult, ClientState, Clock, Combined, Gathered, ServerSamples
from flnl.core.parts import Sampling, Setting
from flnl.core.payload import Params, Payload
from flnl.methods.s_fedavg.exchange import SelectionScores, ShapleyRelevance
from flnl.methods.s_fedavg.sampler import ByRelevance
from flnl.parts.contribution import Relevance
from tests.properties.runs import run
from tests.registry import BY_NAME, TINY
from tests.toys import ONE_STEP

EXCHANGE = ShapleyRelevance(keep=0.75, gain=0.25, temperature=0.5, permutations=10, tolerance=0.005, weights="uniform")


def nobody(*_: Any) -> list[Any]:
    raise AssertionError("nobody is asked")


def sampling(scores: Sequence[float], round: int = 0, clients: Sequence[int] | None = None) -> Sampling:
    """A round of these clients, by default of all, of which the server knows φ / T."""
    chosen = tuple(range(len(scores)) if clients is None else clients)
    known = Payload(SelectionScores(torch.tensor(scores, dtype=torch.float64)))
    return Sampling(1, Clock(round, 1), chosen, dict.fromkeys(chosen, 1), known, nobody)


# ------------------------------------------------------------------------------------------------------- the sampler


def test_clients_are_drawn_one_after_another_by_the_softmax() -> None:
    """Ordered pairs of four clients, against the product of the two draws' probabilities."""
    scores = [0.0, 1.0, -1.0, 2.0]
    p = np.exp(scores) / np.exp(scores).sum()
    draws = 6000
    counts = dict.fromkeys(permutations(range(4), 2), 0)
    for round in range(draws):
        first, second = ByRelevance(0.5)(sampling(scores, round))
        counts[first, second] += 1
    for (first, second), count in counts.items():
        expected = p[first] * p[second] / (1 - p[first])
        deviation = np.sqrt(expected * (1 - expected) / draws)
        assert abs(count / draws - expected) < 4.5 * deviation, (first, second)


def test_a_probability_too_small_to_be_represented_is_no_fault() -> None:
    """Of two places, the second goes to one of clients with a probability of exp(-1000)."""
    cohorts = [ByRelevance(0.5)(sampling([0.0, 1000.0, 0.0, 0.0], round)) for round in range(20)]
    assert {cohort[0] for cohort in cohorts} == {1}
    assert {cohort[1] for cohort in cohorts} == {0, 2, 3}


def test_clients_without_data_are_never_drawn() -> None:
    cohorts = [ByRelevance(0.67)(sampling([9.0, 0.0, 0.0, 9.0, 0.0], round, (1, 2, 4))) for round in range(20)]
    assert all(len(set(cohort)) == 2 and set(cohort) <= {1, 2, 4} for cohort in cohorts)
    assert {frozenset(cohort) for cohort in cohorts} == {frozenset(s) for s in ((1, 2), (1, 4), (2, 4))}


@pytest.mark.parametrize(("fraction", "count"), [(0.29, 29), (0.001, 1), (1.0, 100)])
def test_the_cohort_has_its_size(fraction: float, count: int) -> None:
    cohort = ByRelevance(fraction)(sampling([0.0] * 100))
    assert len(set(cohort)) == len(cohort) == ByRelevance(fraction).size(100) == count


def test_a_run_in_which_all_clients_train_is_told_that_none_is_selected() -> None:
    sizes = dict.fromkeys(range(10), 5)
    line = ByRelevance(1.0).caution(Setting(sizes, (5,), ONE_STEP, "method.sampler"))
    assert line == (
        "method.sampler.fraction=1 takes all of 10 clients, so relevances select none: set a smaller fraction"
    )
    assert ByRelevance(0.9).caution(Setting(sizes, (5,), ONE_STEP, "method.sampler")) is None


# ------------------------------------------------------------------------------------------------------ the exchange

VALUES = {1: 1.5, 2: 0.2, 6: 3.0}
SIZES = {1: 10, 2: 40, 6: 5}


def model(value: float, variance: float, batches: int) -> Params:
    return {
        "w": torch.tensor([value], dtype=torch.float64),
        "bn.running_var": torch.tensor([variance], dtype=torch.float64),
        "bn.num_batches_tracked": torch.tensor(batches),
    }


def accuracy(w: float, variance: float) -> float:
    """Grows with both, and not evenly."""
    return w / (1 + w) + 0.1 * variance**2


def score(params: Params) -> tuple[float, float]:
    """Accuracy and a loss that must not matter."""
    return accuracy(params["w"].item(), params["bn.running_var"].item()), float("nan")


def gathered(combined: Combined | None = None) -> Gathered:
    """A round of three clients, whose running variances are twice their parameters."""
    results = [
        ClientResult(c, SIZES[c], model(v, 2 * v, c), ClientState(), Payload(), 0.0, 3, True) for c, v in VALUES.items()
    ]
    broadcast = Broadcast(2, 1, model(0.5, 1.0, 0), Payload(), (5,))
    return Gathered(broadcast, results, combined, Payload(ServerSamples(score)), 1)


def by_orders(sizes: Mapping[int, int]) -> dict[int, float]:
    """Shapley values by walking all orders; a coalition's model is the mean weighted by ``sizes``."""

    def worth(*members: int) -> float:
        if not members:
            return accuracy(0.5, 1.0)
        mean = float(np.average([VALUES[c] for c in members], weights=[sizes[c] for c in members]))
        return accuracy(mean, 2 * mean)

    values = dict.fromkeys(VALUES, 0.0)
    for order in permutations(VALUES):
        for i, c in enumerate(order):
            values[c] += (worth(*order[: i + 1]) - worth(*order[:i])) / 6
    return values


@pytest.mark.parametrize("weights", ["uniform", "samples"])
def test_relevances_after_a_round(weights: Any) -> None:
    """Of means of whole models, with their running statistics; those who did not train keep theirs."""
    exchange = replace(EXCHANGE, weights=weights)
    before = Relevance(torch.linspace(0.1, 0.8, 8, dtype=torch.float64))
    after = exchange.gathered(before, gathered(Combined({})))
    values = by_orders(SIZES if weights == "samples" else dict.fromkeys(SIZES, 1))
    phi = before.phi.tolist()
    expected = [0.75 * phi[c] + 0.25 * values[c] if c in values else phi[c] for c in range(8)]
    assert after.phi.tolist() == pytest.approx(expected)
    assert sum(values.values()) != pytest.approx(0)


def test_a_round_that_nobody_finished_changes_nothing() -> None:
    state = EXCHANGE.init(8, {})
    assert state.phi.tolist() == [1 / 8] * 8
    assert EXCHANGE.gathered(state, gathered()) is state


def test_what_the_server_knows_and_what_is_recorded() -> None:
    state = Relevance(torch.tensor([0.1, 0.4, 0.2], dtype=torch.float64))
    (scores,) = EXCHANGE.known(state)
    assert scores.value.tolist() == [0.2, 0.8, 0.4]
    (estimate,) = EXCHANGE.findings(state, {}, Payload())
    assert isinstance(estimate, EstimatedQuality)
    odds = np.exp([0.2, 0.8, 0.4])
    assert estimate.values.tolist() == pytest.approx((odds - odds.min()) / (odds.max() - odds.min()))
    assert estimate.scores["relevance"] is state.phi
    assert EXCHANGE.wants_models(Clock(0, 1)) == "after"
    assert EXCHANGE.aid == (ServerSamples,)


# -------------------------------------------------------------------------------------------------------------- runs


def test_relevances_and_estimated_quality_are_recorded(tmp_path: Path) -> None:
    ran = run(BY_NAME["s_fedavg"].words, tmp_path / "run")
    assert {"quality_error", "quality_rank_correlation"} <= ran.record["metrics"].keys()
    relevances = ran.record["clients"]["relevance"]
    assert relevances == pytest.approx(ran.state.server.exchanges["relevance"].phi.tolist())
    assert len(set(relevances)) > 1


def test_without_clean_samples_it_says_where_they_come_from(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"set eval\.benchmark=0\.2"):
        run([*TINY, "method=s_fedavg", "rounds=1"], tmp_path / "run")


def test_the_papers_values_are_the_defaults() -> None:
    method = compose.resolved(compose.load(["method=s_fedavg", "experiment=fedes/cifar10_iid"]))["method"]
    relevance = method["exchange"]["relevance"]
    assert (relevance["keep"], relevance["gain"], relevance["temperature"]) == (0.75, 0.25, 1.0)
    assert method["aggregator"]["weights"] == relevance["weights"] == "uniform"
    assert method["sampler"]["fraction"] == 0.5
