"""What clients are worth on clean samples, against the definitions: S-FedAvg's Shapley values and FAIR's drops."""

from collections.abc import Mapping
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flnl.core.messages import Benchmark, Broadcast, ClientResult, ClientState, Combined, Gathered
from flnl.core.payload import Params, Payload
from flnl.methods.fedes.contribution import Drops, OnBenchmark, Relevance, shapley
from flnl.methods.fedes.quality import quality_of_relevance
from tests.vectors.vectors import federated

BENCHMARK = OnBenchmark(memory=0.5, keep=0.75, gain=0.25, temperature=1.0, permutations=10, tolerance=0.005)


class Game:
    """A value for each coalition, and which were asked for."""

    def __init__(self, values: Mapping[frozenset[int], float]) -> None:
        self.values, self.asked = values, list[frozenset[int]]()

    def __call__(self, coalition: frozenset[int]) -> float:
        self.asked.append(coalition)
        return self.values[coalition]


class Sum:
    """Players add what is theirs, and 0.1 more is there without any; so each is worth its own, in whatever order."""

    def __init__(self, own: Mapping[int, float]) -> None:
        self.own, self.asked = own, list[frozenset[int]]()

    def __call__(self, coalition: frozenset[int]) -> float:
        self.asked.append(coalition)
        return 0.1 + sum(self.own[k] for k in coalition)


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_shapley_values_of_three() -> None:
    entry = federated("sfedavg.shapley")
    game = Game({frozenset(map(int, filter(None, k.split(",")))): v for k, v in entry.inputs["v"].items()})
    found = shapley([0, 1, 2], game, rng(), permutations=1, tolerance=0.0)
    assert [found[k] for k in range(3)] == entry.approx("shapley")
    assert sum(found.values()) == entry.approx("efficiency_sum")
    assert len(game.asked) == 8  # each once


def test_shapley_values_are_the_mean_over_all_orders() -> None:
    """Five players of a game without any symmetry; their values by walking all 120 orders."""
    draw = np.random.default_rng(3)
    players = [2, 3, 5, 8, 9]
    game = Game({frozenset(k for i, k in enumerate(players) if mask >> i & 1): draw.random() for mask in range(32)})
    by_orders = dict.fromkeys(players, 0.0)
    for order in permutations(players):
        for i, k in enumerate(order):
            by_orders[k] += (game.values[frozenset(order[: i + 1])] - game.values[frozenset(order[:i])]) / 120
    found = shapley(players, game, rng(), permutations=1, tolerance=0.5)
    assert found == pytest.approx(by_orders, abs=1e-12)


def test_many_players_are_sampled_and_orders_left_early() -> None:
    own = {k: 0.01 * k for k in range(12)}
    game = Sum(own)
    assert shapley(own, game, rng(), permutations=3, tolerance=0.0) == pytest.approx(own)
    assert len(set(game.asked)) == len(game.asked)

    carried = Sum({k: 0.5 if k == 7 else 0.0 for k in range(12)})
    found = shapley(range(12), carried, rng(), permutations=4, tolerance=0.005)
    assert found == pytest.approx(carried.own)
    assert sum(7 in c for c in carried.asked) <= 1 + 4  # after the one who carries all, nobody is looked at

    nearly = Sum({k: 0.5 if k == 7 else 0.0004 for k in range(12)})
    short = shapley(range(12), nearly, rng(), permutations=4, tolerance=0.005)
    assert sum(short.values()) == pytest.approx(0.5 + 11 * 0.0004, abs=0.005)
    assert sum(short.values()) < 0.5 + 10 * 0.0004


def test_shapley_values_that_do_not_depend_on_the_order_of_the_players() -> None:
    draw = np.random.default_rng(1)
    value = {k: draw.random() for k in range(9)}

    def game(coalition: frozenset[int]) -> float:
        return max((value[k] for k in coalition), default=0.0)

    one, other = (shapley(p, game, rng(), permutations=5, tolerance=0.0) for p in (range(9), range(8, -1, -1)))
    assert one == other
    assert sum(one.values()) == pytest.approx(max(value.values()))


def test_relevances_move_by_what_was_added_and_rest_where_nobody_trained() -> None:
    started = Relevance.of(4)
    assert started.phi.tolist() == [0.25] * 4
    found = started.after({0: 0.2, 3: -0.4}, keep=0.75, gain=0.25)
    assert found.phi.tolist() == pytest.approx([0.75 * 0.25 + 0.05, 0.25, 0.25, 0.75 * 0.25 - 0.1])
    assert started.phi.tolist() == [0.25] * 4
    odds = quality_of_relevance(found.phi.numpy())
    e = np.exp(found.phi.numpy())
    assert odds == pytest.approx((e - e.min()) / (e.max() - e.min()))


def test_drops_forget_by_the_vector() -> None:
    entry = federated("fair.quality")
    history = entry.inputs["history"]
    record = Drops.of(len(history))
    for r in range(3):
        seen = {k: row[r] for k, row in enumerate(history) if row[r] is not None}
        record = record.after(seen, memory=entry.inputs["rho"])
    assert record.mean.tolist() == entry.approx("q_hat")
    assert Drops.of(2).after({0: -0.3}, memory=0.5).mean.tolist() == [-0.3, 0]


# -------------------------------------------------------------------------------------------- models and their scores


def sent(client: int, value: Tensor, count: int, steps: Tensor) -> ClientResult:
    params = {"w": value, "seen": steps}
    return ClientResult(client, count, params, ClientState(), Payload(), 0.0, 3, True)


def score(params: Params) -> tuple[float, float]:
    """Accuracy that grows with w but not evenly, and a loss of its own."""
    w = float(params["w"].sum())
    return w / (1 + w), 3 - w**2


def round_of(results: list[ClientResult], received: Tensor) -> Gathered:
    broadcast = Broadcast(2, 1, {"w": received, "seen": torch.tensor(1)}, Payload(), (5,))
    return Gathered(broadcast, results, Combined({}), Payload(Benchmark(score)), 1)


def test_fair_scores_each_model_and_sfedavg_plain_means_of_them() -> None:
    received = torch.tensor([0.5], dtype=torch.float64)
    values = {1: 1.5, 2: 0.2, 6: 3.0}
    results = [sent(c, torch.tensor([v], dtype=torch.float64), 10 * c, torch.tensor(c)) for c, v in values.items()]
    gathered = round_of(results, received)

    drops = BENCHMARK.after(Drops.of(8), gathered)
    assert isinstance(drops, Drops)
    expected = {c: (3 - 0.25) - (3 - v**2) for c, v in values.items()}
    assert drops.mean.tolist() == pytest.approx([expected.get(c, 0.0) for c in range(8)])

    def worth(*members: int) -> float:
        mean = np.mean([values[c] for c in members]) if members else 0.5  # plain: sizes do not count
        return float(mean / (1 + mean))

    by_hand = dict.fromkeys(values, 0.0)
    for order in permutations(values):
        for i, c in enumerate(order):
            by_hand[c] += (worth(*order[: i + 1]) - worth(*order[:i])) / 6
    found = BENCHMARK.after(Relevance.of(8), gathered)
    assert isinstance(found, Relevance)
    phi = [0.75 / 8 + 0.25 * by_hand[c] if c in by_hand else 1 / 8 for c in range(8)]
    assert found.phi.tolist() == pytest.approx(phi)


def test_a_loss_that_is_larger_everywhere_drops_as_far() -> None:
    results = [sent(c, torch.tensor([0.1 * c], dtype=torch.float64), 1, torch.tensor(0)) for c in range(3)]
    plain = round_of(results, torch.ones(1, dtype=torch.float64))
    shifted = replace(plain, aid=Payload(Benchmark(lambda params: (0.0, score(params)[1] + 5))))
    one, other = (BENCHMARK.after(Drops.of(3), g) for g in (plain, shifted))
    assert isinstance(one, Drops)
    assert isinstance(other, Drops)
    assert one.mean.tolist() == pytest.approx(other.mean.tolist())


def test_orders_are_the_rounds_own() -> None:
    """Of nine clients, so that orders are drawn; another round draws others, the same round the same."""
    results = [sent(c, torch.tensor([0.3 * c], dtype=torch.float64), 1, torch.tensor(0)) for c in range(9)]
    gathered = round_of(results, torch.ones(1, dtype=torch.float64))
    later: Any = replace(gathered, broadcast=replace(gathered.broadcast, round=3))
    found = [BENCHMARK.after(Relevance.of(9), g) for g in (gathered, gathered, later)]
    phi = [r.phi for r in found if isinstance(r, Relevance)]
    assert torch.equal(phi[0], phi[1])
    assert not torch.equal(phi[0], phi[2])
