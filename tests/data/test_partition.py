"""Every partition keeps the contract; each has the shape its definition gives it; what is impossible is said."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flnl.core.errors import UserError
from flnl.core.streams import stream
from flnl.data import partition as P
from flnl.data.partition import Pool, Split

Make = Callable[..., Any]

GENERATED: dict[str, Make] = {
    "iid_uniform": lambda k: P.IIDUniform(k),
    "iid_class": lambda k: P.IIDClass(k, "truth"),
    "fedcorr": lambda k: P.FedCorr(k, 0.5, 5.0, False, "truth"),
    "fedcorr_minimum": lambda k: P.FedCorr(k, 0.5, 5.0, True, "truth"),
    "dirichlet": lambda k: P.Dirichlet(k, 1.0, True, 1, "truth"),
    "dirichlet_plain": lambda k: P.Dirichlet(k, 1.0, False, 1, "truth"),
    "shards": lambda k: P.Shards(k, 2, "truth"),
    "quantity_skew": lambda k: P.QuantitySkew(k, 1.0, 1),
    "labels_per_client": lambda k: P.LabelsPerClient(k, 3, "truth"),
    "openset": lambda k: P.Openset(k, 0.5, "uniform", "largest_remainder", "drop", "given"),
    "openset_floor": lambda k: P.Openset(k, 0.5, "nonuniform", "floor", "redraw", "given"),
}
LOSSLESS = [name for name in GENERATED if not name.startswith(("openset", "labels"))]


def pool(n: int = 1000, classes: int = 10, seed: int = 0) -> Pool:
    return Pool(np.random.default_rng(seed).integers(0, classes, n), classes)


def balanced(per_class: int, classes: int = 10) -> Pool:
    return Pool(np.random.default_rng(0).permutation(np.repeat(np.arange(classes), per_class)), classes)


def drawn(partition: Any, samples: Pool, seed: int = 1) -> Split:
    split = partition(samples, stream(seed, "partition"))
    assert isinstance(split, Split)
    return split


def counts(split: Split, samples: Pool) -> np.ndarray:
    return np.array([np.bincount(samples.labels[i], minlength=samples.num_classes) for i in split.clients])


def keeps_contract(split: Split, n: int) -> None:
    everything = np.concatenate([*split.clients, split.dropped])
    assert sorted(everything.tolist()) == list(range(n))  # disjoint, and nothing lost
    for index in (*split.clients, split.dropped):
        assert index.dtype == np.int64
        assert (np.diff(index) > 0).all()


@pytest.mark.parametrize("name", GENERATED)
@pytest.mark.parametrize("clients", [3, 17])
def test_contract(name: str, clients: int):
    samples = pool()
    split = drawn(GENERATED[name](clients), samples)
    keeps_contract(split, 1000)
    assert len(split.clients) == clients
    assert all(len(index) for index in split.clients)
    if name in LOSSLESS:
        assert len(split.dropped) == 0


@given(n=st.integers(20, 200), classes=st.integers(3, 6), clients=st.integers(1, 8), seed=st.integers(0, 99))
@settings(deadline=None, max_examples=60)
def test_contract_whatever_the_sizes(n, classes, clients, seed):
    for name, make in GENERATED.items():
        try:
            split = drawn(make(clients), pool(n, classes, seed), seed)
        except UserError:
            assert not name.startswith(("iid", "shards"))  # these never fail where N >= K
            continue
        keeps_contract(split, n)
        assert all(len(index) for index in split.clients)


@pytest.mark.parametrize("name", GENERATED)
def test_seed_decides(name: str):
    samples = pool()
    owner = [drawn(GENERATED[name](5), samples, seed).owner.tolist() for seed in (1, 1, 2)]
    assert owner[0] == owner[1] != owner[2]


@pytest.mark.parametrize("name", GENERATED)
def test_more_clients_than_samples(name: str):
    with pytest.raises(UserError, match=r"partition\.num_clients=11 .* 10 samples"):
        drawn(GENERATED[name](11), pool(10, 3))


@pytest.mark.parametrize("name", LOSSLESS)
def test_one_client_holds_everything(name: str):
    assert drawn(GENERATED[name](1), pool(50, 4)).clients[0].tolist() == list(range(50))


@pytest.mark.parametrize("name", ["iid_class", "fedcorr", "dirichlet", "shards", "openset"])
def test_class_with_one_sample_or_none(name: str):
    labels = np.concatenate([np.repeat([0, 1, 2], 40), [3]])  # class 4 has none
    keeps_contract(drawn(GENERATED[name](4), Pool(labels, 5)), 121)


# --------------------------------------------------------------------------------------------------------------- IID


def test_iid_uniform_sizes_differ_by_one_at_most():
    sizes = [len(i) for i in drawn(P.IIDUniform(7), pool(1000)).clients]
    assert set(sizes) == {142, 143}


def test_iid_uniform_is_not_class_balanced():
    found = counts(drawn(P.IIDUniform(100), balanced(500)), balanced(500))
    assert 0.8 < found.var() / (5 * 0.9) < 1.2  # hypergeometric, not constant


@pytest.mark.parametrize(("classes", "per_class", "clients", "each"), [(10, 5000, 100, 50), (100, 500, 50, 10)])
def test_iid_class_is_exact_where_it_can_be(classes, per_class, clients, each):
    samples = balanced(per_class, classes)
    assert (counts(drawn(P.IIDClass(clients, "truth"), samples), samples) == each).all()


def test_iid_class_deals_remainders_round():
    samples = Pool(np.repeat(np.arange(10), 13), 10)  # 13 = 4 * 3 + 1, ten classes over: 130 = 4 * 32 + 2
    found = counts(drawn(P.IIDClass(4, "truth"), samples), samples)
    assert set(found.ravel().tolist()) == {3, 4}
    assert sorted(found.sum(axis=1).tolist()) == [32, 32, 33, 33]
    richer = [drawn(P.IIDClass(4, "truth"), samples, s).owner[:13].tolist() for s in range(20)]
    assert len({np.argmax(np.bincount(r)) for r in richer}) > 1  # the start is random


# ----------------------------------------------------------------------------------------------- Bernoulli, Dirichlet


def test_fedcorr_holders_are_bernoulli():
    samples = balanced(2000)
    share = np.mean(
        [(counts(drawn(P.FedCorr(50, 0.3, 1e6, False, "truth"), samples, s), samples) > 0) for s in range(5)]
    )
    # Redrawn empty rows lift p by the factor 1 / (1 - 0.7^10).
    expected = 0.3 / (1 - 0.7**10)
    assert abs(share - expected) < 4 * np.sqrt(0.21 / 2500)


def test_fedcorr_samples_choose_their_client_by_chance():
    """Multinomial, not cut: with equal shares, counts over holders vary as n q (1 - q)."""
    samples = balanced(5000)
    found = counts(drawn(P.FedCorr(20, 1.0, np.inf, False, "truth"), samples), samples)
    assert abs(found.var() / (5000 * 0.05 * 0.95) - 1) < 4 * np.sqrt(2 / 190)


def test_fedcorr_dirichlet_concentration():
    """Var(q) = q(1-q)/(K alpha + 1), to which the multinomial adds q(1-q)/n."""
    samples = balanced(5000)
    found = np.concatenate(
        [counts(drawn(P.FedCorr(10, 1.0, 2.0, False, "truth"), samples, s), samples) for s in range(20)]
    )
    assert abs((found / 5000).var() / (0.09 / 21 + 0.09 / 5000 * 20 / 21) - 1) < 0.15


def test_fedcorr_gives_every_class_a_holder():
    """With ten clients a class would be nobody's in a quarter of the draws."""
    samples = balanced(30)
    for seed in range(60):
        split = drawn(P.FedCorr(10, 0.3, 10.0, False, "truth"), samples, seed)
        assert (counts(split, samples).sum(axis=0) == 30).all()


def test_fedcorr_minimum_one():
    """Where alpha is tiny nearly all of a class goes to one holder, and yet each keeps one sample."""
    samples = balanced(500)
    with_one = counts(drawn(P.FedCorr(10, 1.0, 0.01, True, "truth"), samples), samples)
    assert (with_one >= 1).all()
    assert (counts(drawn(P.FedCorr(10, 1.0, 0.1, False, "truth"), samples), samples) == 0).any()


def test_fedcorr_p_zero():
    with pytest.raises(UserError, match=r"partition\.p=0 "):
        P.FedCorr(10, 0.0, 1.0, False, "truth")


def test_fedcorr_that_cannot_be_met_names_its_keys():
    with pytest.raises(UserError, match=r"partition\.p=1\.0 and partition\.alpha=0\.001 .*num_clients=100"):
        drawn(P.FedCorr(100, 1.0, 0.001, False, "truth"), balanced(50))
    with pytest.raises(UserError, match=r"partition\.p=1e-09 is too small"):
        drawn(P.FedCorr(10, 1e-9, 1.0, False, "truth"), balanced(50))
    with pytest.raises(UserError, match=r"partition\.minimum_one=true"):
        drawn(P.FedCorr(10, 1.0, 1.0, True, "truth"), Pool(np.array([0] * 50 + [1]), 2))


def test_dirichlet_default_minimum_is_the_number_of_classes():
    samples = balanced(50)  # 25 a client on average, so the rule bites
    least = {
        minimum: min(
            min(map(len, drawn(P.Dirichlet(20, 1.0, True, minimum, "truth"), samples, seed).clients))
            for seed in range(20)
        )
        for minimum in (None, 1)
    }
    assert least[1] < 10 <= least[None]


@pytest.mark.parametrize(
    "make",
    [lambda least: P.Dirichlet(8, 1.0, True, least, "truth"), lambda least: P.QuantitySkew(8, 1.0, least)],
    ids=["dirichlet", "quantity_skew"],
)
def test_a_client_with_exactly_the_minimum_has_enough(make):
    """So a draw stands if the minimum is what its smallest client has, and not if it is one more."""
    samples = balanced(50)
    for seed in range(5):
        first = drawn(make(1), samples, seed)
        smallest = min(map(len, first.clients))
        assert (drawn(make(smallest), samples, seed).owner == first.owner).all()
        more = drawn(make(smallest + 1), samples, seed)
        assert min(map(len, more.clients)) > smallest
    for partition in (P.Dirichlet(10, np.inf, False, 100, "truth"), P.QuantitySkew(10, np.inf, 100)):
        assert [len(c) for c in drawn(partition, balanced(100)).clients] == [100] * 10


def test_dirichlet_balance_rule():
    """A client may pass N/K within a class, but then gets nothing of a later one (the last takes only crumbs)."""
    samples = balanced(1000)
    found = counts(drawn(P.Dirichlet(10, 0.3, True, 1, "truth"), samples), samples)
    before = np.cumsum(found, axis=1) - found
    assert (found[before >= 1000] <= 1).all()
    plain = counts(drawn(P.Dirichlet(10, 0.3, False, 1, "truth"), samples), samples)
    assert (plain[(np.cumsum(plain, axis=1) - plain) >= 1000] > 1).any()


def test_dirichlet_limits_of_alpha():
    samples = balanced(100)
    assert (counts(drawn(P.Dirichlet(10, np.inf, False, 1, "truth"), samples), samples) == 10).all()
    few = counts(drawn(P.Dirichlet(3, 1e-3, False, 1, "truth"), samples), samples)
    assert (np.sort(few, axis=0)[-1] >= 95).all()  # a class goes to one client whole
    tiny = P.shares(1e-300, 4, stream(0, "partition"))
    assert sorted(tiny.tolist()) == [0, 0, 0, 1]


@pytest.mark.parametrize("alpha", [1e301, 1e307, 1e308, np.inf])
def test_an_alpha_without_end_gives_equal_shares(alpha: float):
    """NumPy's sum of so large numbers is infinite, and its shares are all zero."""
    for count in (1, 7, 1000):
        np.testing.assert_array_equal(P.shares(alpha, count, stream(0, "partition")), np.full(count, 1 / count))
    assert [len(c) for c in P.Dirichlet(10, alpha, False, 1, "truth")(balanced(100), stream(0, "x")).clients] == [
        100
    ] * 10
    assert [len(c) for c in P.QuantitySkew(10, alpha, 1)(balanced(100), stream(0, "x")).clients] == [100] * 10


@pytest.mark.parametrize("alpha", [1e18, 1e100, 9e299])
def test_a_large_alpha_gives_nearly_equal_shares(alpha: float):
    np.testing.assert_allclose(P.shares(alpha, 1000, stream(0, "partition")), np.full(1000, 1e-3), rtol=1e-7)


@pytest.mark.parametrize("alpha", [5e-324, 1e-310, 1e-301, 2e-300, 1e-100])
def test_a_small_alpha_gives_everything_to_any_one(alpha: float):
    rng = np.random.default_rng(0)
    found = np.array([P.shares(alpha, 4, rng) for _ in range(2000)])
    assert set(np.unique(found)) == {0.0, 1.0}
    assert (found.sum(axis=1) == 1).all()
    assert np.abs(found.mean(axis=0) - 0.25).max() < 4 * np.sqrt(0.25 * 0.75 / 2000)


@pytest.mark.parametrize("alpha", [1e-3, 0.1, 0.5, 1.0, 10.0, 1e6])
def test_an_ordinary_alpha_is_numpy_s_draw_to_the_bit(alpha: float):
    drawn = stream(3, "partition").dirichlet(np.full(20, alpha))
    np.testing.assert_array_equal(P.shares(alpha, 20, stream(3, "partition")), drawn / drawn.sum())


def test_dirichlet_gives_up_and_says_why():
    with pytest.raises(UserError, match=r"partition\.alpha=0\.001 .* partition\.minimum .* at best 0 samples; 10"):
        drawn(P.Dirichlet(50, 0.001, False, 10, "truth"), balanced(100))
    with pytest.raises(UserError, match=r"partition\.minimum=30 .* at most 20 a client"):
        drawn(P.Dirichlet(50, 1.0, True, 30, "truth"), balanced(100))


@pytest.mark.parametrize("clients", [1, 2])
def test_dirichlet_has_nothing_left_for_classes_without_samples(clients: int):
    """When all clients hold their part nobody has room."""
    samples = Pool(np.zeros(20, np.int64), 3)
    split = drawn(P.Dirichlet(clients, 0.5, True, 1, "truth"), samples)
    keeps_contract(split, 20)
    assert sum(map(len, split.clients)) == 20


def test_all_shares_zero_falls_back_to_clients_with_room():
    """At an alpha this small all of a class is offered to one client, often one that is full already."""
    samples = balanced(100)
    for seed in range(20):
        keeps_contract(drawn(P.Dirichlet(10, 1e-3, True, 1, "truth"), samples, seed), 1000)


# -------------------------------------------------------------------------------------------- shards, sizes, openset


def test_shards_limit_classes():
    samples = balanced(600)
    split = drawn(P.Shards(100, 2, "truth"), samples)
    assert {len(i) for i in split.clients} == {60}
    assert (counts(split, samples) > 0).sum(axis=1).max() <= 2


def test_shards_lose_no_remainder():
    keeps_contract(drawn(P.Shards(7, 3, "truth"), pool(1000)), 1000)


def test_more_shards_than_samples():
    with pytest.raises(UserError, match=r"partition\.shards=3 .* at most 2 a client"):
        drawn(P.Shards(5, 3, "truth"), pool(10, 2))


def test_quantity_skew_of_fednoisy_is_found():
    """Its α of 0.1 and minimum of 10 among ten clients of MNIST: one draw in about a thousand has them."""
    samples = Pool(np.zeros(60_000, np.int64), 1)
    for seed in range(4):
        assert min(map(len, drawn(P.QuantitySkew(10, 0.1, 10), samples, seed).clients)) >= 10


def test_quantity_skew_changes_sizes_only():
    samples = balanced(5000)
    split = drawn(P.QuantitySkew(10, 0.5, 10), samples)
    sizes = np.array([len(i) for i in split.clients])
    assert sizes.min() >= 10
    assert sizes.max() > 2 * np.median(sizes)
    big = counts(split, samples)[sizes.argmax()] / sizes.max()
    assert np.abs(big - 0.1).max() < 4 * np.sqrt(0.09 / sizes.max())


@pytest.mark.parametrize("missing", ["drop", "redraw"])
def test_openset_clients_see_some_classes_and_not_all(missing):
    samples = balanced(200, 4)
    lost = 0
    for seed in range(30):
        split = drawn(P.Openset(3, 0.5, "uniform", "largest_remainder", missing, "given"), samples, seed)
        seen = (counts(split, samples) > 0).sum(axis=1)
        assert ((seen > 0) & (seen < 4)).all()
        assert len(split.dropped) % 200 == 0  # whole classes or nothing
        lost += len(split.dropped)
    assert (lost > 0) == (missing == "drop")


def test_openset_uniform_allocation():
    samples = Pool(np.repeat([0, 1, 2], [10, 11, 12]), 3)
    for seed in range(10):
        exact = counts(
            drawn(P.Openset(7, 0.5, "uniform", "largest_remainder", "redraw", "given"), samples, seed), samples
        )
        floor = counts(drawn(P.Openset(7, 0.5, "uniform", "floor", "redraw", "given"), samples, seed), samples)
        assert exact.sum(axis=0).tolist() == [10, 11, 12]
        for c, n in enumerate([10, 11, 12]):
            held = exact[:, c][exact[:, c] > 0]
            assert np.ptp(held) <= 1
            literal = floor[:, c][floor[:, c] > 0]
            assert (literal == n // len(literal)).all()


def test_openset_subsets_are_equally_likely_at_one_half():
    samples = balanced(4000, 3)
    split = drawn(P.Openset(3000, 0.5, "uniform", "largest_remainder", "drop", "given"), samples)
    subset = (counts(split, samples) > 0) @ np.array([1, 2, 4])
    share = np.bincount(subset, minlength=8) / 3000
    assert share[0] == share[7] == 0
    entries = json.loads((Path(__file__).parents[1] / "vectors/vectors_seed_methods.json").read_text())["vectors"]
    expected = next(e["expected"] for e in entries if e["id"] == "fedpeer.openset_prob")
    assert (share > 0).sum() == expected["n_subsets"]
    p = expected["prob_each"]
    assert np.abs(share[1:7] - p).max() < 4 * np.sqrt(p * (1 - p) / 3000)
    assert expected["reject_prob"] == 2 * 0.5**3


@pytest.mark.parametrize(("clients", "classes", "labels"), [(10, 10, 3), (25, 10, 1), (4, 10, 2), (12, 14, 5)])
def test_labels_per_client_are_dealt_in_turn(clients: int, classes: int, labels: int):
    """FedNoisy: client k holds class k mod C and others that are drawn; a class is divided evenly, in client order."""
    samples, seen = balanced(100, classes), set()
    for seed in range(5):
        split = drawn(P.LabelsPerClient(clients, labels, "truth"), samples, seed)
        held = counts(split, samples)
        assert ((held > 0).sum(axis=1) == labels).all()
        assert all(held[k, k % classes] > 0 for k in range(clients))
        for column in held.T:
            sizes = column[column > 0].tolist()
            assert sum(sizes) == (100 if sizes else 0)
            assert sizes == sorted(sizes, reverse=True)
            assert not sizes or max(sizes) - min(sizes) <= 1
        assert len(split.dropped) == 100 * int((held.sum(axis=0) == 0).sum())
        seen.add(held.tobytes())
    assert len(seen) > 1 or labels == 1


def test_labels_per_client_draws_the_other_classes_uniformly():
    samples = balanced(100)
    splits = (drawn(P.LabelsPerClient(10, 3, "truth"), samples, seed) for seed in range(300))
    held = np.sum([counts(split, samples) > 0 for split in splits], axis=0)
    others = held[~np.eye(10, dtype=bool)]
    assert abs(others - 300 * 2 / 9).max() < 4.5 * (300 * 2 / 9 * 7 / 9) ** 0.5


def test_labels_per_client_that_cannot_be_met():
    with pytest.raises(UserError, match=r"partition\.labels=11 is more than the 10 classes"):
        drawn(P.LabelsPerClient(5, 11, "truth"), balanced(10))
    with pytest.raises(
        UserError, match=r"partition\.labels=1 leaves clients without samples at partition\.num_clients=9"
    ):
        drawn(P.LabelsPerClient(9, 1, "truth"), Pool(np.repeat(np.arange(4), 5), 9))


@pytest.mark.parametrize(
    ("clients", "alpha", "smallest"),
    [(100, 0.1, 3), (100, 0.3, 19), (100, 0.5, 185), (100, 1.0, 161), (50, 0.1, 5), (50, 0.3, 49)],
)
def test_the_split_of_fnbenchs_program(clients: int, alpha: float, smallest: int):
    """What its program finds on CIFAR-10 is below its minimum of 100 at the smaller alphas, where it does not end."""
    samples = balanced(5000)
    split = drawn(P.FNBench(clients, alpha, 1, "truth"), samples)
    keeps_contract(split, 50_000)
    assert min(map(len, split.clients)) == smallest
    assert len(split.dropped) == 0
    if smallest < 100:
        said = rf"partition\.alpha={alpha} gives the smallest .* {smallest} samples, whatever the seed"
        with pytest.raises(UserError, match=said):
            drawn(P.FNBench(clients, alpha, 100, "truth"), samples)


def test_the_split_of_fnbenchs_program_has_no_seed():
    samples = pool(2000, 10)
    owners = [drawn(P.FNBench(20, 1.0, 1, "truth"), samples, seed).owner.tolist() for seed in (1, 2)]
    assert owners[0] == owners[1]
    # NumPy's own, for the first class: the draw, then the order of its samples
    theirs = np.random.RandomState(0)
    members = np.flatnonzero(samples.labels == 0)
    edges = (np.cumsum(theirs.dirichlet(np.ones(20))) * len(members)).astype(int)
    theirs.shuffle(members)
    for client, part in enumerate(np.split(members, edges[:-1])):
        assert {owners[0][i] for i in part} <= {client}


@pytest.mark.parametrize("alpha", [1e-300, 1e308])
def test_the_split_of_fnbenchs_program_at_the_ends_of_alpha(alpha: float):
    with pytest.raises(UserError, match="whatever the seed"):
        drawn(P.FNBench(20, alpha, 10, "truth"), pool(500))


def test_openset_needs_three_classes():
    with pytest.raises(UserError, match="3 classes or more, this one has 2"):
        drawn(P.Openset(3, 0.5, "uniform", "floor", "drop", "given"), balanced(10, 2))


def test_openset_that_cannot_cover():
    with pytest.raises(UserError, match=r"partition\.q=0\.5 .* partition\.missing=redraw"):
        drawn(P.Openset(1, 0.5, "uniform", "floor", "redraw", "given"), balanced(10, 3))


def test_cut_gives_the_last_what_rounding_leaves():
    assert P.cut(10, np.array([0.3, 0.3, 0.3])).tolist() == [3, 3, 4]


def test_which_samples_of_a_class_is_left_to_chance():
    """Dealt in their order, a client's samples of a class would lie next to each other."""
    samples = Pool(np.repeat([0, 1], 1000), 2)
    for split in (drawn(P.IIDClass(2, "truth"), samples), drawn(P.Shards(10, 1, "truth"), samples)):
        changes = (np.diff(split.owner[:1000]) != 0).sum()
        assert changes > 400


def test_remainder_ties_fall_by_lot():
    first = [P.apportion(10, np.full(3, 1 / 3), stream(s, "partition")).argmax() for s in range(30)]
    assert set(first) == {0, 1, 2}


# -------------------------------------------------------------------------------------------------------------- files


def test_file_natural_clients():
    labels = np.zeros(5, np.int64)
    natural = Pool(labels, 2, clients=np.array([2, 0, 2, 0, 4]))
    split = drawn(P.File(None, None), natural)
    assert [i.tolist() for i in split.clients] == [[1, 3], [], [0, 2], [], [4]]  # empty clients are legal here
    assert len(drawn(P.File(7, None), natural).clients) == 7
    with pytest.raises(UserError, match=r"partition\.num_clients=3, .* up to 4"):
        drawn(P.File(3, None), natural)
    with pytest.raises(UserError, match=r"partition\.path .* dataset\.sites=true"):
        drawn(P.File(None, None), Pool(labels, 2))
    large = Pool(labels[:2], 2, clients=np.array([0, 1]), client_names=("1", "9" * 30))
    with pytest.raises(UserError, match=r"partition\.num_clients=3, .* up to 9{30};"):
        drawn(P.File(3, None), large)


def test_file_clients_with_names():
    """Of a data set; a number of clients adds some without samples, and gives numbers their places."""
    named = Pool(np.zeros(4, np.int64), 2, clients=np.array([1, 0, 1, 1]), client_names=("east", "west"))
    assert drawn(P.File(None, None), named).names == ("east", "west")
    assert drawn(P.File(3, None), named).names == ("east", "west", "2")
    with pytest.raises(UserError, match=r"partition\.num_clients=1, but there are 2 clients with names"):
        drawn(P.File(1, None), named)
    numbered = Pool(np.zeros(4, np.int64), 2, clients=np.array([1, 0, 1, 1]), client_names=("2", "5"))
    assert [i.tolist() for i in drawn(P.File(None, None), numbered).clients] == [[1], [0, 2, 3]]
    split = drawn(P.File(6, None), numbered)
    assert [len(i) for i in split.clients] == [0, 0, 1, 0, 0, 3]
    assert split.names is None
    with pytest.raises(UserError, match=r"partition\.num_clients=5, .* up to 5"):
        drawn(P.File(5, None), numbered)
    padded = Pool(np.zeros(4, np.int64), 2, clients=np.array([1, 0, 1, 1]), client_names=("01", "1"))
    assert drawn(P.File(None, None), padded).names == ("01", "1")
    with pytest.raises(UserError, match="'01' and '1' are two clients of one number"):
        drawn(P.File(3, None), padded)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lines.csv", "1\n0\n-1\n1\n"),
        ("header.csv", "client\n1\n0\n-1\n1\n"),
        ("ids.csv", "id,client\nd,1\na,1\nother,9\nc,-1\nb,0\n"),
        ("spreadsheet.csv", "\ufeffid;client\nd;1\na;1\nc;-1\nb;0\n"),
        ("spaces.csv", "client, id\n1, d\n1, a\n-1, c\n0, b\n"),
        ("marked.csv", "\ufeff1\n0\n-1\n1\n"),
    ],
)
def test_file_forms(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_text(text, encoding="utf-8")
    split = drawn(P.File(None, str(tmp_path / name)), Pool(np.zeros(4, np.int64), 2, ids=list("abcd")))
    assert [i.tolist() for i in split.clients] == [[1], [0, 3]]
    assert split.dropped.tolist() == [2]


def test_file_npy(tmp_path: Path):
    file = tmp_path / "clients.npy"
    np.save(file, np.array([1, 0, 1], np.uint8))
    samples = Pool(np.zeros(3, np.int64), 2)
    assert [i.tolist() for i in drawn(P.File(None, str(file)), samples).clients] == [[1], [0, 2]]
    assert P.File(None, str(file)).files() == (file,)
    np.save(file, np.array([0.5, 1, 2]))
    with pytest.raises(UserError, match="names or whole numbers"):
        drawn(P.File(None, str(file)), samples)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.csv", "0\n1\n", "names 2 clients for 3 samples"),
        ("a.csv", "0\n-2\n1\n", "client is '-2'"),
        ("a.csv", "0\nnan\n1\n", "a missing value"),
        ("a.csv", "id,client\n0,1\n1,1\n", "no line for '2'"),
        ("a.csv", "id,client\n0,1\n1,1\n2,0\n2,1\n", "listed twice"),
        ("a.csv", "client,client\n0,1\n1,1\n1,0\n0,1\n", "has the column 'client' twice"),
        ("a.csv", "-1\n-1\n-1\n", "no sample to any client"),
        ("a.csv", "path,label,client\na,x,1\nb,x,0\nc,y,1\n", "has a column 'path', which is not read"),
        ("a.csv", "id,client\n0,1\n1\n2,0\n", "line 3 has another number of values"),
        ("a.txt", "0\n1\n1\n", r"\.npy or \.csv"),
    ],
)
def test_file_faults(tmp_path: Path, name: str, text: str, message: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=message):
        drawn(P.File(None, str(tmp_path / name)), Pool(np.zeros(3, np.int64), 2))


def test_a_file_may_lie_below_the_home_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A shell does not expand ``~`` behind ``partition.path=``."""
    monkeypatch.setenv("HOME", str(tmp_path))
    np.save(tmp_path / "clients.npy", np.array([1, 0, 1]))
    part = P.File(None, "~/clients.npy")
    assert drawn(part, Pool(np.zeros(3, np.int64), 2)).owner.tolist() == [1, 0, 1]
    assert part.files() == (tmp_path / "clients.npy",)


def test_file_missing(tmp_path: Path):
    with pytest.raises(UserError, match="no such file"):
        drawn(P.File(None, str(tmp_path / "none.csv")), Pool(np.zeros(3, np.int64), 2))
