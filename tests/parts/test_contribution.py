"""What clients contribute on clean samples, against the definitions: Shapley values and reductions of the loss."""

from collections.abc import Mapping
from itertools import permutations

import numpy as np
import pytest

from flnl.parts.contribution import Drops, Relevance, selection_probabilities, shapley
from tests.vectors.vectors import federated


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


def test_drops_forget_by_the_vector() -> None:
    entry = federated("fair.quality")
    history = entry.inputs["history"]
    record = Drops.of(len(history))
    for r in range(3):
        seen = {k: row[r] for k, row in enumerate(history) if row[r] is not None}
        record = record.after(seen, memory=entry.inputs["rho"])
    assert record.mean.tolist() == entry.approx("q_hat")
    assert Drops.of(2).after({0: -0.3}, memory=0.5).mean.tolist() == [-0.3, 0]


def test_selection_probabilities_are_a_softmax_of_any_temperature() -> None:
    phi = [0.2, 0.15, 0.3]
    e = np.exp(np.array(phi) / 0.1)
    assert selection_probabilities(phi, temperature=0.1) == pytest.approx(e / e.sum())
    assert selection_probabilities(phi, temperature=1e-5).tolist() == pytest.approx([0, 0, 1])


@pytest.mark.parametrize("memory", [0.0, 0.3, 1.0])
def test_drops_of_any_memory_are_the_weighted_mean_of_the_rounds_in_which_a_client_trained(memory: float) -> None:
    rng = np.random.default_rng(0)
    record, history = Drops.of(4), list[dict[int, float]]()
    for t in range(12):
        drops = {k: float(rng.normal()) for k in range(3) if rng.random() < 0.6}
        record = record.after(drops, memory=memory)
        history.append(drops)
        for k in range(3):
            rounds = [r for r, drops in enumerate(history) if k in drops]
            weights = [memory ** (rounds[-1] - r) for r in rounds]  # of ratios, any common factor is left out
            expected = sum(w * history[r][k] for w, r in zip(weights, rounds, strict=True)) / sum(weights or [1])
            assert record.mean[k] == pytest.approx(expected, abs=1e-12), (t, k)
            assert bool(record.trained[k]) == bool(rounds)
    assert record.mean[3] == 0
    assert not record.trained[3]


def test_an_estimate_outlives_any_number_of_rounds_without_training() -> None:
    """Its sums would be 0 after a thousand halvings; in a new round the past still counts for nothing."""
    record = Drops.of(1).after({0: 2.0}, memory=0.5).after({0: 5.0}, memory=0.5)
    for _ in range(5000):
        record = record.after({}, memory=0.5)
    assert record.mean[0] == pytest.approx(4.0)
    assert record.after({0: -1.0}, memory=0.5).mean[0] == -1.0
