"""FedNoisy's and FNBench's noise: their rates, counts and targets against the published programs."""

from math import sqrt
from typing import Any

import numpy as np
import pytest

from flnl.config import compose
from flnl.config.check import check_config
from flnl.core.errors import UserError
from flnl.core.streams import stream
from flnl.data.noise import corrupt
from flnl.data.noise.client import Localized
from flnl.data.noise.groups import GroupRamp
from flnl.data.noise.maps import class_map, local_map
from flnl.data.noise.transition import Asymmetric, Symmetric
from tests.data.noise_sets import balanced, labelled
from tests.vectors.vectors import field


def ramp(*groups: Any, end: Any = "exclude", shared_seed: int | None = None) -> GroupRamp:
    return GroupRamp(groups, end, shared_seed)


# ------------------------------------------------------------------------------------------------- FNBench's groups


def test_rates_of_a_group_rise_and_do_not_reach_the_end():
    vector = field("fnbench.group_rates")
    ((clients, low, high),) = vector.inputs["groups"]
    for count in (clients, None):
        rates = ramp(["symmetric", count, low, high]).rates(clients, 1)
        assert rates[:4].tolist() == vector.approx("first")
        assert rates[-2:].tolist() == vector.approx("last")
        assert rates.mean() == vector.approx("mean")
    assert ramp(["symmetric", clients, 0.0, 0.8]).rates(clients, 1).mean() == vector.approx("mean_0_to_0_8")
    reached = ramp(["symmetric", clients, low, high], end="include").rates(clients, 1)
    assert (reached[0], reached[-1]) == (low, high)


def test_each_group_has_a_ramp_of_its_own():
    vector = field("fnbench.mixed_rates")
    (first, *of_first), (second, *of_second) = vector.inputs["groups"]
    for counts in ((first, second), (None, None), (first, None)):
        noise = ramp(["symmetric", counts[0], *of_first], ["pairflip", counts[1], *of_second])
        rates = noise.rates(first + second, 7)
        for client in (0, 49, 50, 99):
            assert rates[client] == vector.approx(f"rate_{client}")
        assert rates.mean() == vector.approx("mean")
        kinds = [noise.of(client, first + second).kind for client in range(first + second)]
        assert kinds == ["symmetric"] * first + ["pairflip"] * second


def test_the_pair_of_fnbench_is_the_class_before():
    vector = field("fnbench.pairflip")
    labels = np.array(vector.inputs["labels"])
    data = labelled(labels, vector.inputs["C"])
    for seed in (None, 1):
        changes = ramp(["pairflip", 1, 1.0, 1.0], shared_seed=seed).of(0, 1)
        assert changes(labels, 1.0, data, stream(1, "noise", 0)).tolist() == vector.expected["noisy"]


def test_draws_of_the_program_that_seeds_every_client_alike():
    vector = field("fnbench.seed_replica")
    labels = np.array(vector.inputs["labels"])
    data, rng = labelled(labels, 10), stream(1, "noise", 0)
    for kind in ("symmetric", "pairflip"):
        changes = ramp([kind, 1, 0.0, 0.4], shared_seed=vector.inputs["seed"]).of(0, 1)
        given = changes(labels, vector.inputs["rate"], data, rng)
        assert given.tolist() == vector.expected[kind]
        assert sorted(np.flatnonzero(given != labels)) == sorted(vector.expected["flipped_positions"])
        more = changes(labels, 0.6, data, rng)
        assert sorted(np.flatnonzero(more != labels)) == sorted(vector.expected["second_client_rate_0_6_flips"])
    own = [ramp(["symmetric", None, 0.4, 0.4]).of(0, 1)(labels, 0.4, data, stream(1, "noise", k)) for k in range(9)]
    assert len({tuple(np.flatnonzero(given != labels)) for given in own}) > 5, "ours differ between clients"


def test_numbers_of_changed_labels_are_rounded_down():
    """The program takes ``int`` of a binary fraction: 28 of 100 at a rate of 0.29, where 29 are meant."""
    data = labelled(np.zeros(100, np.int64), 10)
    found = [
        (ramp(["symmetric", 1, 0.0, 0.4], shared_seed=seed).of(0, 1)(data.truth, 0.29, data, stream(1, "noise")) != 0)
        for seed in (None, 1)
    ]
    assert [int(changed.sum()) for changed in found] == [29, 28]


def test_a_level_ramp_is_localized_noise_of_all_classes():
    data = balanced(100)
    parts = np.array_split(np.arange(1000), 7)
    ours, rates = corrupt(ramp(["symmetric", None, 0.3, 0.3]), data, data.truth, parts, 5)
    theirs, same = corrupt(Localized(0.3, 0.3, "symmetric", "exact", "global", "pair"), data, data.truth, parts, 5)
    assert (ours == theirs).all()
    assert rates.tolist() == pytest.approx(same.tolist())


def test_kinds_follow_the_groups():
    data = balanced(100)
    parts = np.array_split(np.arange(1000), 10)
    noise = ramp(["symmetric", 3, 0.5, 0.5], ["clean", None, 0.0, 0.0], ["pairflip", 4, 0.5, 0.5])
    given, rates = corrupt(noise, data, data.truth, parts, 1)
    steps = [(data.truth[part] - given[part])[given[part] != data.truth[part]] % 10 for part in parts]
    assert [len(step) for step in steps] == [50] * 3 + [0] * 3 + [50] * 4
    assert [set(step.tolist()) == {1} for step in steps] == [False] * 6 + [True] * 4
    assert rates.tolist() == [0.5] * 3 + [0.0] * 3 + [0.5] * 4


def test_the_script_that_leaves_half_of_the_clients_clean():
    """FNBench's CIFAR-100 script for mixed noise gives one interval for two groups; the program drops the second."""
    rates = ramp(["symmetric", 50, 0.0, 0.4], ["clean", 50, 0.0, 0.0]).rates(100, 1)
    assert rates[49] == pytest.approx(0.392)
    assert (rates[50:] == 0).all()


def test_the_nominal_rate_is_the_mean_of_the_middles():
    assert ramp(["symmetric", None, 0.0, 0.4]).nominal == pytest.approx(0.2)
    assert ramp(["symmetric", 3, 0.0, 0.4], ["clean", 1, 0.5, 0.5]).nominal == pytest.approx(0.15)
    assert ramp(["symmetric", 3, 0.0, 0.4], ["clean", None, 0.0, 0.0]).nominal is None


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ([["symmetric", 10, 0.0, 0.4]], "has 10 clients, and there are 20"),
        ([["symmetric", 30, 0.0, 0.4], ["clean", None, 0, 0]], "has 30 clients, and there are 20"),
        ([["symmetric", 10, 0.0, 0.4], ["clean", 12, 0, 0]], "has 22 clients, and there are 20"),
    ],
)
def test_groups_of_another_number_of_clients_are_refused(groups: list[list[Any]], said: str):
    with pytest.raises(UserError, match=rf"noise\.groups {said}: give as many"):
        ramp(*groups).rates(20, 1)


@pytest.mark.parametrize(
    "group",
    [
        ["symmetric", 20, 0.4],
        ["symmetric", 20, 0.0, 0.4, 0.5],
        ["asymmetric", 20, 0.0, 0.4],
        ["symmetric", 0, 0.0, 0.4],
        ["symmetric", 2.5, 0.0, 0.4],
        ["symmetric", True, 0.0, 0.4],
        ["symmetric", 20, 0.0, 1.4],
        ["symmetric", 20, 0.0, "0.4"],
        [["symmetric"], 20, 0.0, 0.4],
        [],
    ],
)
def test_a_group_that_is_none_is_refused_by_its_key(group: Any):
    cfg = compose.load(["method=fedavg", "noise=group_ramp"])
    cfg.noise.groups = [group]
    with pytest.raises(UserError, match=r"^noise\.groups[^\n]*must be \[kind, clients, low, high\]"):
        check_config(cfg)


def test_groups_of_a_command_line():
    cfg = compose.load(["method=fedavg", "noise=group_ramp", "noise.groups=[[clean,3,0,0],[pairflip,null,0.1,1]]"])
    check_config(cfg)
    assert compose.build(cfg.noise).rates(5, 1).tolist() == pytest.approx([0, 0, 0, 0.1, 0.55])
    with pytest.raises(UserError, match=r"^noise\.groups"):
        check_config(compose.load(["method=fedavg", "noise=group_ramp", "noise.groups=[]"]))


# ---------------------------------------------------------------------------------------------------- FedNoisy's


def test_localized_asymmetric_noise_takes_the_next_class_that_is_held():
    vector = field("fednoisy.localized_asym")
    found = []
    for case in vector.inputs["cases"]:
        name: Any = "block5" if case["C"] == 100 else "pair"
        mapping = class_map(name, labelled(np.zeros(1, np.int64), case["C"]))
        found.append(int(local_map(mapping, np.array(case["space"]))[case["label"]]))
    assert found == vector.expected["noisy"]


def test_globalized_noise_is_hypergeometric_on_a_client():
    """Exactly int(εN) labels of all change, whoever holds them."""
    vector = field("fednoisy.globalized_client_spread")
    N, eps, n = (vector.inputs[name] for name in ("N", "eps", "n_k"))
    assert n * eps == vector.approx("mean")
    assert sqrt(n * eps * (1 - eps) * (N - n) / (N - 1)) == vector.approx("std")
    data = labelled(np.arange(N) % 10, 10)
    for noise in (Symmetric(eps, False, "exact"), Asymmetric(eps, "pair", "exact")):
        wrong = [noise(data, seed) != data.truth for seed in range(60)]
        assert {int(changed.sum()) for changed in wrong} == {int(eps * N)}
        counts = [int(part.sum()) for changed in wrong for part in np.split(changed, N // n)]
        assert np.mean(counts) == pytest.approx(vector.expected["mean"])
        # 60 x 10 counts; the deviation of a deviation is about std / sqrt(2 x 600)
        assert abs(np.std(counts) - vector.expected["std"]) < 5 * vector.expected["std"] / sqrt(1200)
