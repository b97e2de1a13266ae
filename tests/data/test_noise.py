"""Noise models against their definitions: laws within four standard deviations, counts exactly, streams apart."""

import json
import math
from math import erf, exp, pi, sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flnl.core.errors import UserError
from flnl.core.streams import stream
from flnl.data.noise import ClientNoise, corrupt, limited
from flnl.data.noise.client import FLR, Drift, FedCorr, FedES, Localized
from flnl.data.noise.instance import Instance, confusion
from flnl.data.noise.maps import class_map, local_map, superclass_map
from flnl.data.noise.transition import Asymmetric, Clean, Matrix, Random, Symmetric, transmit
from flnl.numerics.label_flips import choose
from flnl.numerics.rounding import nearest, whole
from tests.data.noise_sets import balanced, labelled, share, transition

VECTORS = Path(__file__).parent.parent / "vectors"
DATA = json.loads((VECTORS / "vectors_data.json").read_text())
SEED = {v["id"]: v for v in json.loads((VECTORS / "vectors_seed_methods.json").read_text())["vectors"]}

CLIENT_NOISE: dict[str, Any] = {
    "fedcorr": FedCorr(0.6, 0.3, "bernoulli", "all"),
    "fedcorr_exact": FedCorr(0.6, 0.3, "exact", "all"),
    "flr": FLR(0.6, 0.3, "symmetric", "fixed", "pair"),
    "flr_asymmetric": FLR(0.6, 0.4, "asymmetric", "fixed", "pair"),
    "fedes": FedES(0.5, 0.2, "symmetric", "local", "pair"),
    "fedes_asymmetric": FedES(0.5, 0.2, "asymmetric", "local", "pair"),
    "localized": Localized(0.2, 0.6, "symmetric", "exact", "global", "pair"),
}
SET_NOISE: dict[str, Any] = {
    "symmetric": Symmetric(0.4, False, "bernoulli"),
    "symmetric_exact": Symmetric(0.4, True, "exact"),
    "asymmetric": Asymmetric(0.4, "pair", "per_class"),
    "random": Random(0.4, 0.05),
    "matrix": Matrix([[0.7, 0.3, 0.0], [0.0, 0.8, 0.2], [0.1, 0.0, 0.9]], None),
}


def within(found: Any, expected: Any, n: Any, sigmas: float = 4.0) -> bool:
    """Whether shares of ``n`` Bernoulli trials are where they should be."""
    p = np.asarray(expected, float)
    return bool((np.abs(found - p) <= sigmas * np.sqrt(p * (1 - p) / n) + 1e-12).all())


def one_client(noise: ClientNoise, truth: Any, rate: float, data: Any, seed: int = 1) -> Any:
    return noise(truth, rate, data, stream(seed, "noise", 0))


# ------------------------------------------------------------------------------------------------- all alike


@pytest.mark.parametrize("name", SET_NOISE)
def test_set_noise_is_a_function_of_the_seed_and_leaves_the_truth_alone(name):
    data = balanced(300, 3)
    before, test = data.truth.copy(), data.test_labels.copy()
    first, again, other = (SET_NOISE[name](data, seed) for seed in (1, 1, 2))
    assert first.dtype == np.int64
    assert (first == again).all()
    assert (first != other).any()
    assert (data.truth == before).all()
    assert (data.test_labels == test).all()


@pytest.mark.parametrize("name", CLIENT_NOISE)
def test_clients_do_not_depend_on_each_other(name):
    """Take client 1 away, or give it other samples: the labels of the rest are the same."""
    noise, data = CLIENT_NOISE[name], balanced(200)
    parts = np.array_split(np.arange(2000), 4)
    full, _ = corrupt(noise, data, data.truth, parts, 1)
    other, _ = corrupt(noise, data, data.truth, [parts[0], parts[1][:7], *parts[2:]], 1)
    kept = np.concatenate([parts[0], *parts[2:]])
    assert (full[kept] == other[kept]).all()
    exact = name.startswith(("fedcorr_exact", "flr"))  # how many are noisy is a matter of how many there are
    if not exact:
        fewer, _ = corrupt(noise, data, data.truth, parts[:2], 1)
        assert (full[parts[0]] == fewer[parts[0]]).all()
        assert (full[parts[1]] == fewer[parts[1]]).all()
    assert (full != data.truth).any()


@pytest.mark.parametrize("name", CLIENT_NOISE)
def test_clients_flip_different_positions(name):
    """A seed shared by clients would flip the same positions on each."""
    noise, data = CLIENT_NOISE[name], labelled(np.tile(np.arange(10), 200), 10)
    flips = [noise(data.truth, 0.5, data, stream(1, "noise", k)) != data.truth for k in range(2)]
    assert (flips[0] != flips[1]).mean() > 0.2


@pytest.mark.parametrize("name", CLIENT_NOISE)
def test_empty_client_and_rate_zero(name):
    noise, data = CLIENT_NOISE[name], balanced(20)
    assert len(one_client(noise, np.zeros(0, np.int64), 0.7, data)) == 0
    assert (one_client(noise, data.truth, 0.0, data) == data.truth).all()


@pytest.mark.parametrize("noise", [*SET_NOISE.values(), Instance(0.4, 0.1, "raw", "shared")])
def test_noise_of_the_set_is_not_taken_for_noise_of_clients(noise):
    assert not isinstance(noise, ClientNoise)
    assert all(isinstance(n, ClientNoise) for n in CLIENT_NOISE.values())


def test_clean_takes_labels_as_they_came():
    data = balanced(5)
    assert (Clean()(data, 1) == data.truth).all()
    wrong = (data.truth + 1) % 10
    assert (Clean()(labelled(data.truth, 10, given=wrong), 1) == wrong).all()


def test_simulated_noise_needs_truth():
    data = labelled(np.zeros(3, np.int64), 3, truth=None, given=np.zeros(3, np.int64))
    with pytest.raises(UserError, match="noise=none"):
        Symmetric(0.1, False, "exact")(data, 1)


# --------------------------------------------------------------------------------------------------- flips


@given(n=st.integers(0, 500), percent=st.integers(0, 100))
@settings(deadline=None)
def test_exact_counts_forgive_binary_fractions(n, percent):
    """0.29 * 100 is 28.999... as a double; 29 labels are meant."""
    picked = choose(np.zeros(n, np.int64), percent / 100, "exact", stream(0, "noise"))
    assert picked.sum() == n * percent // 100 == whole(n * percent / 100)
    assert nearest(n * percent / 100) == (2 * n * percent + 100) // 200


def test_per_class_counts():
    data = balanced(300)
    picked = choose(data.truth, 0.29, "per_class", stream(0, "noise"))
    assert np.bincount(data.truth[picked]).tolist() == [87] * 10


def test_bernoulli_counts_vary_as_binomial():
    counts = [choose(np.zeros(1000, np.int64), 0.3, "bernoulli", stream(s, "noise")).sum() for s in range(200)]
    assert abs(np.var(counts) / 210 - 1) < 4 * sqrt(2 / 200)


# ------------------------------------------------------------------------------------------------- FedCorr


def test_fedcorr_expected_wrong_share():
    vector = SEED["fedcorr.noise.expectation"]
    for C, key in ((10, "M10"), (100, "M100")):
        data = balanced(60000 // C, C)
        parts = np.array_split(np.arange(60000), 3000)
        for (rho, tau), expected in zip(vector["inputs"]["rho_tau"], vector["expected"][key], strict=True):
            labels, _ = corrupt(FedCorr(rho, tau, "bernoulli", "all"), data, data.truth, parts, 3)
            # Between clients: Var(mu) <= E[mu^2] <= rho; within them: at most 1/4 a sample.
            assert abs(share(labels, data.truth) - expected) <= 4 * sqrt(rho / 3000 + 0.25 / 60000)


def test_fedcorr_levels():
    rates = FedCorr(0.6, 0.5, "bernoulli", "all").rates(4000, 1)
    assert within((rates > 0).mean(), 0.6, 4000)
    noisy = rates[rates > 0]
    assert noisy.min() >= 0.5
    assert noisy.max() < 1
    assert abs(noisy.mean() - 0.75) < 4 * 0.5 / sqrt(12 * len(noisy))


@pytest.mark.parametrize(("rho", "tau"), [(0.0, 0.5), (1.0, 0.0), (1.0, 1.0)])
def test_fedcorr_limits(rho, tau):
    rates = FedCorr(rho, tau, "bernoulli", "all").rates(50, 1)
    assert (rates > 0).all() if rho else (rates == 0).all()
    if tau == 1:
        assert (rates == 1).all()


def test_fedcorr_level_one_makes_labels_independent_of_the_truth():
    data = balanced(2000)
    labels = one_client(FedCorr(1, 1, "bernoulli", "all"), data.truth, 1.0, data)
    assert within(transition(labels, data.truth, 10), 0.1, 2000, 4.5)


def test_fedcorr_new_labels_cover_all_classes_unless_first10():
    vector, data = SEED["fedcorr.noise.c100_bug"]["expected"], balanced(300, 100)
    spaces: Any = {"all": "share_in_first10_paper", "first10": "share_in_first10_released_code"}
    for space, key in spaces.items():
        labels = one_client(FedCorr(1, 0, "bernoulli", space), data.truth, 1.0, data)
        wrong = labels != data.truth
        assert within(wrong.mean(), vector["p_wrong_both"], 30000)
        assert within((labels[wrong] < 10).mean(), vector[key], wrong.sum())


def test_fedcorr_first10_with_fewer_classes():
    data = balanced(50, 3)
    assert one_client(FedCorr(1, 0, "exact", "first10"), data.truth, 1.0, data).max() == 2


@pytest.mark.parametrize(
    ("noise", "samples"),  # of 500 labels 185.6, 185.4 and 185.5 at these rates
    [
        (FedCorr(1, 0, "exact", "all"), (186, 185, 186)),
        (FLR(1, 0, "symmetric", "fixed", "auto"), (186, 185, 186)),
        (FLR(1, 0.4, "asymmetric", "fixed", "pair"), (186, 185, 186)),
        (FedES(0.3, 0.2, "symmetric", "global", "auto"), (185, 185, 185)),
        (FedES(0.3, 0.2, "asymmetric", "global", "pair"), (185, 185, 185)),
        (Localized(0.2, 0.6, "symmetric", "exact", "global", "auto"), (185, 185, 185)),
        (Localized(0.2, 0.6, "asymmetric", "exact", "global", "pair"), (185, 185, 185)),
    ],
)
def test_a_number_of_labels_is_the_nearest_or_rounded_down(noise, samples):
    """FedCorr and FLR round (Section 3 of each), FedES and FedNoisy take ``int``."""
    data = labelled(np.zeros(500, np.int64), 100_000)  # with so many classes, hardly any label comes back
    found = [(one_client(noise, data.truth, rate, data) != 0).sum() for rate in (0.3712, 0.3708, 0.371)]
    assert tuple(found) == samples


@pytest.mark.parametrize(("rho", "clients"), [(0.53, 11), (0.52, 10), (0.525, 11)])
def test_a_number_of_noisy_clients_is_the_nearest(rho, clients):
    """Of 20: 10.6, 10.4 and 10.5."""
    for noise in (FedCorr(rho, 0, "exact", "all"), FLR(rho, 0.4, "asymmetric", "fixed", "pair")):
        assert [int((noise.rates(20, seed) > 0).sum()) for seed in range(5)] == [clients] * 5


@pytest.mark.parametrize("count", ["bernoulli", "exact"])
def test_fedcorr_counts(count):
    """Numbers of clients and of samples: by chance, or exact. With so many classes a label hardly comes back."""
    noise, data = FedCorr(0.5, 0, count, "all"), labelled(np.zeros(500, np.int64), 100_000)
    clients = {int((noise.rates(20, s) > 0).sum()) for s in range(20)}
    samples = {int((one_client(noise, data.truth, 0.37, data, s) != 0).sum()) for s in range(20)}
    if count == "exact":
        assert clients == {10}
        assert samples == {185}
    else:
        assert len(clients) > 3
        assert len(samples) > 10


# ----------------------------------------------------------------------------------------------------- FLR


def test_flr_exact_counts():
    vector = SEED["flr.exact_counts"]
    inputs, expected = vector["inputs"], vector["expected"]
    noise = FLR(inputs["rho"], 0.0, "symmetric", "fixed", "auto")
    assert (noise.rates(inputs["N"], 1) > 0).sum() == expected["noisy_clients"]
    data = labelled(np.zeros(inputs["n_k"], np.int64), inputs["C"])
    wrong = [share(one_client(noise, data.truth, inputs["r_k"], data, s), data.truth) for s in range(200)]
    mean, deviation = expected["expected_wrong"], sqrt(expected["reassigned"] * 0.09)
    assert abs(np.mean(wrong) * inputs["n_k"] - mean) < 4 * deviation / sqrt(200)
    assert max(wrong) * inputs["n_k"] <= expected["reassigned"]


def test_flr_asymmetric_rate_is_tau():
    assert set(FLR(0.6, 0.4, "asymmetric", "fixed", "auto").rates(100, 1).tolist()) == {0.0, 0.4}
    uniform = FLR(0.6, 0.4, "asymmetric", "uniform", "auto").rates(100, 1)
    assert len(set(uniform.tolist())) == 61
    data = labelled(np.arange(10).repeat(100), 10, "cifar10")
    labels = one_client(FLR(1, 0.4, "asymmetric", "fixed", "pair"), data.truth, 0.4, data)
    assert (labels != data.truth).sum() == 400  # round(tau n), every class having a partner


def test_noisy_clients_are_not_simply_the_first():
    chosen = [np.flatnonzero(FLR(0.3, 0.0, "symmetric", "fixed", "auto").rates(10, s)).tolist() for s in range(20)]
    assert len({tuple(c) for c in chosen}) > 10


# --------------------------------------------------------------------------------------------------- FedES


def test_fedes_rates_are_clipped_and_not_truncated():
    vector = SEED["fedes.noise"]
    n = 20000
    for i, mu in enumerate(vector["inputs"]["mu"]):
        rates = FedES(mu, vector["inputs"]["sigma"], "symmetric", "global", "auto").rates(n, 5)
        assert within((rates == 0).mean(), vector["expected"]["p_zero"][i], n)
        assert within((rates == 1).mean(), vector["expected"]["p_one"][i], n)
        assert abs(rates.mean() - vector["expected"]["mean_clipped"][i]) < 4 * 0.2 / sqrt(n)
    # The vector's own numbers, from the closed form of a clipped normal.
    a = -0.3 / 0.2
    cdf, density = 0.5 * (1 + erf(a / sqrt(2))), exp(-a * a / 2) / sqrt(2 * pi)
    assert abs(cdf - vector["expected"]["p_zero"][0]) < 1e-9
    assert abs(0.3 * (1 - cdf) + 0.2 * density - vector["expected"]["mean_clipped"][0]) < 1e-4


def test_fedes_symmetric_changes_exactly_its_rate():
    data = balanced(10)
    labels = one_client(FedES(0.3, 0.2, "symmetric", "global", "auto"), data.truth, 0.29, data)
    assert (labels != data.truth).sum() == 29
    everything = one_client(FedES(0.3, 0.2, "symmetric", "global", "auto"), data.truth, 1.0, data)
    assert (everything != data.truth).all()  # changes: the true class never comes back


def test_fedes_local_labels_stay_with_the_client():
    data = balanced(100)
    truth = data.truth[np.isin(data.truth, [3, 4, 8])]
    for kind in ("symmetric", "asymmetric"):
        labels = one_client(FedES(0.3, 0.2, kind, "local", "pair"), truth, 1.0, data)
        assert set(labels.tolist()) == {3, 4, 8}
        assert (labels != truth).all()
    symmetric = one_client(FedES(0.3, 0.2, "symmetric", "local", "auto"), truth, 1.0, data)
    local = np.searchsorted([3, 4, 8], truth), np.searchsorted([3, 4, 8], symmetric)
    T = transition(local[1], local[0], 3)
    assert within(T, (1 - np.eye(3)) / 2, 100)
    alone = np.full(5, 7)
    assert (one_client(FedES(0.3, 0.2, "symmetric", "local", "auto"), alone, 1.0, data) == 7).all()


def test_fedes_local_asymmetric_vector():
    vector = SEED["fedes.local_asym"]
    mapping = np.arange(10)
    mapping[[int(k) for k in vector["inputs"]["global_map"]]] = list(vector["inputs"]["global_map"].values())
    local = local_map(mapping, np.array(vector["inputs"]["local_classes"]))
    assert {str(c): int(local[c]) for c in vector["inputs"]["local_classes"]} == vector["expected"]


def test_local_map_prefers_the_cycle():
    """CIFAR-100: the next present class of the superclass, and only where none is present any other."""
    mapping = superclass_map()
    ring = [0]
    while len(ring) < 5:
        ring.append(int(mapping[ring[-1]]))
    present = np.array(sorted([ring[0], ring[2], 99 if 99 not in ring else 98]))
    local = local_map(mapping, present)
    assert local[ring[0]] == ring[2]
    assert local[ring[2]] == ring[0]
    assert local[present[-1]] == present[0]  # the odd one has nobody of its superclass


@given(present=st.sets(st.integers(0, 9), min_size=2), name=st.sampled_from(["patrini", "pair", "swaps", "block5"]))
@settings(deadline=None)
def test_local_map_never_leaves_the_client(present, name):
    mapping = class_map(name, balanced(1, 10, "cifar10"))
    here = np.array(sorted(present))
    local = local_map(mapping, here)
    assert set(local[here].tolist()) <= present
    for y in here:
        assert (local[y] == y) == (mapping[y] == y)
        if mapping[y] in present:
            assert local[y] == mapping[y]


def test_localized_rates():
    rates = Localized(0.2, 0.6, "symmetric", "exact", "global", "auto").rates(2000, 1)
    assert rates.min() >= 0.2
    assert rates.max() <= 0.6
    assert abs(rates.mean() - 0.4) < 4 * 0.4 / sqrt(12 * 2000)
    with pytest.raises(UserError, match=r"noise\.low=0\.6 is above noise\.high=0\.2"):
        Localized(0.6, 0.2, "symmetric", "exact", "global", "auto")


@pytest.mark.parametrize(("start", "end"), [(0.8, 0.0), (0.1, 0.5), (0.3, 0.3)])
def test_drift_goes_evenly_from_the_first_sample_to_the_last(start, end):
    noise, data = Drift(start, end, 0.0, "symmetric", "global", "auto"), balanced(4000)
    rates = noise.rates(3, 1)
    assert rates == pytest.approx([(start + end) / 2] * 3)
    wrong = one_client(noise, data.truth, rates[0], data) != data.truth
    expected = start + (end - start) * (np.arange(10) + 0.5) / 10  # the mean of each tenth, in the client's order
    assert within(wrong.reshape(10, -1).mean(axis=1), expected, len(wrong) // 10)


def test_drift_moves_clients_apart_and_clips():
    noise, data = Drift(0.9, 0.0, 0.45, "symmetric", "global", "auto"), balanced(1000)
    rates = noise.rates(500, 1)
    assert 0 <= rates.min() < 0.02
    assert 0.88 < rates.max() <= 0.9
    wrong = one_client(noise, data.truth, 0.0, data) != data.truth
    assert not wrong[len(wrong) // 2 :].any()
    assert wrong[: len(wrong) // 2].mean() == pytest.approx(0.225, abs=0.02)
    assert (one_client(noise, data.truth[:1], 1.0, data) != data.truth[:1]).all()
    assert len(one_client(noise, data.truth[:0], 0.5, data)) == 0


# ------------------------------------------------------------------------------------------ transition laws


def test_symmetric_matrices():
    for key, include in (("sym_incl_C4_r0.4", True), ("sym_excl_C4_r0.4", False)):
        assert np.allclose(Symmetric(0.4, include, "bernoulli").matrix(4), DATA["matrices"][key], atol=1e-12)
    vector = SEED["fedpeer.symmetric_T"]
    for eta, diagonal, off in zip(
        vector["inputs"]["eta"], vector["expected"]["diag"], vector["expected"]["offdiag"], strict=True
    ):
        T = Symmetric(eta, False, "bernoulli").matrix(10)
        assert np.allclose(T, np.full((10, 10), off) + np.eye(10) * (diagonal - off), atol=1e-12)


def test_asymmetric_matrix():
    T = Asymmetric(0.4, "patrini", "bernoulli").matrix(balanced(1, 10, "cifar10"))
    assert np.allclose(T, DATA["matrices"]["cifar10_patrini_r0.4"], atol=1e-12)


@pytest.mark.parametrize("count", ["bernoulli", "exact", "per_class"])
@pytest.mark.parametrize("include", [True, False])
def test_symmetric_realised(count, include):
    data = balanced(5000)
    noise = Symmetric(0.5, include, count)
    labels = noise(data, 1)
    assert within(transition(labels, data.truth, 10), noise.matrix(10), 5000, 4.5)
    assert within(share(labels, data.truth), 0.45 if include else 0.5, 50000)
    if count == "exact" and not include:
        assert (labels != data.truth).sum() == 25000


@pytest.mark.parametrize("count", ["bernoulli", "exact", "per_class"])
def test_asymmetric_flips_cats_and_dogs_once(count):
    """Flipped in place, fresh dogs would flip back: 24 % of cats and 18.4 % of all instead of 40 and 20."""
    data = balanced(5000, 10, "cifar10")
    labels = Asymmetric(0.4, "auto", count)(data, 1)
    T = transition(labels, data.truth, 10)
    assert within(T, DATA["matrices"]["cifar10_patrini_r0.4"], 5000, 4.5)
    assert abs(share(labels, data.truth) - 0.2) < 4 * sqrt(0.16 / 50000)
    assert T[3, 3] < DATA["inplace_asym_bug_r0.4"]["expected_cat"] * -1 + 1 - 0.1
    if count == "per_class":
        assert np.allclose(T[[2, 3, 4, 5, 9], [2, 3, 4, 5, 9]], 0.6)


def test_transmit_realises_its_matrix():
    T = np.random.default_rng(0).dirichlet(np.ones(5), 5)
    T[0] = [0, 0, 1, 0, 0]
    T[1] = [0.5, 0, 0, 0, 0.5]
    truth = np.arange(5).repeat(20000)
    found = transition(transmit(truth, T, stream(1, "noise")), truth, 5)
    assert within(found, T, 20000)
    assert (found[T == 0] == 0).all()


@pytest.mark.parametrize("eta", [0.2, 0.6, 0.98])
def test_random_matrix(eta):
    noise = Random(eta, 0.05)
    many = np.array([noise.matrix(10, s) for s in range(300)])
    assert np.allclose(many.sum(axis=2), 1)
    assert (many >= 0).all()
    diagonal = np.diagonal(many, axis1=1, axis2=2)
    low, high = max(0, 1 - eta - 0.05), 1 - eta + 0.05
    assert diagonal.min() >= low
    assert diagonal.max() <= high
    if eta < 0.9:
        assert abs(diagonal.mean() - (1 - eta)) < 4 * 0.1 / sqrt(12 * 3000)
        # Dir(1) over nine: each share has mean 1/9 and variance (1/9)(8/9)/10.
        off = many[:, 0, 1] / (1 - many[:, 0, 0])
        assert abs(off.mean() - 1 / 9) < 4 * sqrt(8 / 810 / 300)
        assert abs(off.var() / (8 / 810) - 1) < 0.6


def test_random_realises_its_matrix():
    data = balanced(5000)
    noise = Random(0.4, 0.05)
    assert within(transition(noise(data, 7), data.truth, 10), noise.matrix(10, 7), 5000, 4.5)


def test_a_matrix_of_unequal_rows_is_refused_by_its_key() -> None:
    for rows in ([[0.9, 0.1], [0.1]], []):
        with pytest.raises(UserError, match=r"^noise\.matrix: its rows must be numbers"):
            _ = Matrix(rows, None).expected


def test_own_matrix(tmp_path):
    rows = [[0.7, 0.3, 0.0], [0.0, 0.8, 0.2], [0.1, 0.0, 0.9]]
    data = balanced(5000, 3)
    np.save(tmp_path / "T.npy", np.array(rows))
    np.savetxt(tmp_path / "T.csv", np.array(rows), delimiter=",")
    direct = Matrix(rows, None)(data, 1)
    assert within(transition(direct, data.truth, 3), rows, 5000)
    for name in ("T.npy", "T.csv"):
        assert (Matrix(None, str(tmp_path / name))(data, 1) == direct).all()


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[1.0, 0.0], [0.0, 1.0]], "2 x 2: 3 rows of 3"),
        ([[1, 0, 0], [0.5, 0.4, 0], [0, 0, 1]], "row 1 sums to 0.9"),
        ([[1, 0, 0], [0, 1.5, -0.5], [0, 0, 1]], "row 1 has an entry that is negative or no number"),
        ([[1, 0, 0], [0, 1, 0], [0, math.nan, 1]], "row 2 has an entry that is negative or no number"),
    ],
)
def test_own_matrix_faults(rows, message):
    with pytest.raises(UserError, match=f"noise.matrix.*{message}"):
        Matrix(rows, None)(balanced(2, 3), 1)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((), r"holds an array of shape \[\]: C rows of C numbers are needed"),
        ((3,), r"holds an array of shape \[3\]: C rows of C numbers are needed"),
        ((2, 2, 2), r"holds an array of shape \[2, 2, 2\]: C rows of C numbers are needed"),
        ((0, 0), "is 0 x 0: .* are needed"),
    ],
)
def test_a_file_that_is_no_matrix_is_refused_also_where_its_rate_is_asked_first(tmp_path, shape, message):
    np.save(tmp_path / "T.npy", np.ones(shape))
    own = Matrix(None, str(tmp_path / "T.npy"))
    with pytest.raises(UserError, match=rf"noise\.path=.* {message}"):
        _ = own.expected
    with pytest.raises(UserError, match=rf"noise\.path=.* {message}"):
        own(balanced(2, 3), 1)


def test_own_matrix_needs_one_source(tmp_path):
    with pytest.raises(UserError, match=r"noise\.matrix.*noise\.path"):
        Matrix(None, None)
    with pytest.raises(UserError, match="no such file"):
        Matrix(None, str(tmp_path / "T.npy"))(balanced(2, 3), 1)


# ---------------------------------------------------------------------------------------------------- maps


@pytest.mark.parametrize(
    ("name", "dataset", "vector"),
    [
        ("auto", "cifar10", "cifar10_patrini"),
        ("auto", "mnist", "mnist_patrini"),
        ("auto", "digits", "mnist_patrini"),
        ("cdr", "mnist", "mnist_cdr"),
        ("auto", "fashion_mnist", "fashion_mnist_cdr"),
        ("auto", "svhn", "pair_i_to_i_plus_1"),
        ("pair", "cifar10", "pair_i_to_i_plus_1"),
        ("pair_previous", "cifar10", "pair_fnbench_i_to_i_minus_1"),
        ("swaps", "cifar10", "nls_repo_pair_swaps"),
    ],
)
def test_maps(name, dataset, vector):
    expected = {int(k): v for k, v in DATA["maps"][vector].items()}
    mapping = class_map(name, balanced(1, 10, dataset))
    assert mapping.tolist() == [expected.get(c, c) for c in range(10)]


def test_cifar10_map_vector():
    vector = SEED["noise.cifar10_asym"]["expected"]
    mapping = class_map("auto", balanced(1, 10, "cifar10"))
    assert mapping.tolist() == vector["map"]
    assert (mapping != np.arange(10)).sum() == vector["n_flippable"]


def test_cifar100_maps():
    data = balanced(1, 100, "cifar100")
    superclass, block = class_map("auto", data), class_map("block5", data)
    coarse = np.array(DATA["cifar100"]["fine_to_coarse"])
    assert superclass.tolist() == DATA["cifar100"]["superclass_circular_map"]
    assert (coarse[superclass] == coarse).all()
    assert block.tolist() == DATA["cifar100"]["consecutive_block_map_used_by_patrini_code"]
    assert (coarse[block] == coarse).sum() == DATA["cifar100"]["consecutive_successor_in_same_superclass"]
    for mapping in (superclass, block):  # cycles of five: back after five steps and not before
        step = np.arange(100)
        for power in range(1, 6):
            step = mapping[step]
            assert (step == np.arange(100)).all() == (power == 5)


@pytest.mark.parametrize(
    ("name", "dataset", "classes"),
    [
        ("auto", "cifar10", 5),
        ("patrini", "mnist", 8),
        ("cdr", "fashion_mnist", 3),
        ("auto", "CIFAR-100", 12),
        ("superclass", "cifar100", 120),
    ],
)
def test_a_map_by_name_needs_the_classes_that_it_names(name, dataset, classes):
    """A data set of the user's own may have any name, and only some of the classes."""
    message = rf"noise\.map={name}: {dataset} with {classes} classes has no such map; choose one of pair, "
    with pytest.raises(UserError, match=message):
        class_map(name, balanced(1, classes, dataset))
    assert class_map("pair", balanced(1, classes, dataset)).tolist() == [*range(1, classes), 0]


def test_unknown_maps_name_those_there_are():
    with pytest.raises(UserError, match=r"noise\.map=auto: synthetic has no such map; choose one of pair, "):
        class_map("auto", balanced(1, 10))
    with pytest.raises(UserError, match=r"noise\.map=block5"):
        class_map("block5", balanced(1, 14))
    with pytest.raises(UserError, match=r"noise\.map=patrini: cifar100 .* superclass"):
        class_map("patrini", balanced(1, 100, "cifar100"))


# ------------------------------------------------------------------------------------------- rates near 0 and 1


@pytest.mark.parametrize("rate", [0.0, 0.02, 0.1, 0.5, 0.97, 1.0])
def test_the_expected_rate_is_the_mean_of_rates_that_are_limited(rate):
    """Means of 20,000 draws: a deviation of at most 0.0015."""
    means: dict[Any, Any] = {
        Instance(rate, 0.1, "raw", "shared"): lambda noise: noise.sample_rates(20000, stream(1, "noise")).mean(),
        Random(rate, 0.05): lambda noise: np.mean([1 - np.diag(noise.matrix(20, s)).mean() for s in range(1000)]),
        FedES(rate, 0.2, "symmetric", "global", "auto"): lambda noise: noise.rates(20000, 1).mean(),
    }
    for noise, mean in means.items():
        assert noise.expected == pytest.approx(mean(noise), abs=0.006)


@pytest.mark.parametrize(("start", "end"), [(0.0, 0.0), (0.4, 0.0), (0.9, 1.0)])
def test_the_expected_rate_of_drift_is_the_share_that_changes(start, end):
    noise, data = Drift(start, end, 0.3, "symmetric", "global", "auto"), balanced(200)
    wrong = [
        share(noise(data.truth, rate, data, stream(2, "noise", k)), data.truth)
        for k, rate in enumerate(noise.rates(400, 1))
    ]
    assert noise.expected == pytest.approx(np.mean(wrong), abs=0.02)


def test_means_of_limited_rates():
    mu, means = SEED["fedes.noise"]["inputs"]["mu"], SEED["fedes.noise"]["expected"]["mean_clipped"]
    assert [limited.clipped_normal(m, 0.2) for m in mu] == pytest.approx(means, abs=1e-4)
    grid = (np.arange(10**6) + 0.5) / 10**6
    for rate in (0.0, 0.1, 0.5, 0.9, 1.0):
        for spread in (0.05, 0.4, 2.0):
            density = np.exp(-(((grid - rate) / spread) ** 2) / 2)
            assert limited.truncated_normal(rate, spread) == pytest.approx((grid * density).sum() / density.sum())
            drawn = np.clip(rate + spread * (2 * grid - 1), 0, 1)
            assert limited.clipped_uniform(rate, spread) == pytest.approx(drawn.mean(), abs=1e-9)
        assert {f(rate, 0.0) for f in (limited.truncated_normal, limited.clipped_normal)} == {rate}
        assert limited.truncated_normal(rate, 1e-300) == pytest.approx(rate)
        assert limited.truncated_normal(rate, 1e9) == pytest.approx(0.5)


# ------------------------------------------------------------------------------------------------ instance


def imaged(n: int = 6000, classes: int = 4) -> Any:
    rng = np.random.default_rng(3)
    truth = rng.integers(0, classes, n)
    return labelled(truth, classes, pixels=torch.from_numpy(rng.integers(0, 256, (n, 1, 3, 3)).astype(np.uint8)))


@pytest.mark.parametrize("pixels", ["raw", "unit", "normalized"])
@pytest.mark.parametrize("projection", ["per_class", "shared"])
def test_instance_rate(pixels, projection):
    data = imaged()
    labels = Instance(0.4, 0.1, pixels, projection)(data, 1)
    assert within(share(labels, data.truth), 0.4, 6000)


def test_instance_rates_are_truncated():
    """Redrawn beyond 0 and 1, not clipped: no mass at the ends, and the mean moves as the formula says."""
    q = Instance(0.05, 0.1, "raw", "shared").sample_rates(20000, stream(1, "noise"))
    assert q.min() > 0
    a = -0.5
    shift = exp(-a * a / 2) / sqrt(2 * pi) / (1 - 0.5 * (1 + erf(a / sqrt(2))))
    assert abs(q.mean() - (0.05 + 0.1 * shift)) < 4 * 0.1 / sqrt(20000)
    data = imaged()
    wrong = share(Instance(0.05, 0.1, "raw", "shared")(data, 1), data.truth)
    assert within(wrong, 0.05 + 0.1 * shift, 6000)


def test_instance_follows_its_formula():
    """Labels against q softmax(x W[y]) + (1 - q) e_y computed sample by sample."""
    data, noise = imaged(3000, 3), Instance(0.5, 0.1, "unit", "per_class")
    x = data.train.pixels.numpy().reshape(3000, 9) / 255
    expected = np.zeros((3000, 3))
    for i, y in enumerate(data.truth):
        W = stream(1, "noise.projection", int(y)).standard_normal((9, 3))
        a = np.exp(x[i] @ W)
        a[y] = 0
        expected[i] = 0.5 * a / a.sum()
        expected[i, y] = 0.5
    labels = np.eye(3)[noise(data, 1)]
    for c in range(3):  # standardised residuals, and no trend left in what the formula explains
        gap = labels[:, c] - expected[:, c]
        scale = np.sqrt((expected[:, c] * (1 - expected[:, c])).sum())
        assert abs(gap.sum()) < 4 * scale
        assert abs((gap * (expected[:, c] - expected[:, c].mean())).sum()) < 4 * 0.5 * scale


def test_instance_raw_pixels_decide_and_unit_pixels_hardly():
    data = imaged()
    agreement = {}
    for pixels in ("raw", "unit"):
        first, second = (Instance(0.5, 0.1, pixels, "shared"), Instance(0.5, 0.1, pixels, "shared"))
        a, b = first(data, 1), second(data, 1)
        assert (a == b).all()
        # Two noisy draws of the same image: rerun with other uniforms by moving it in the order.
        moved = labelled(np.roll(data.truth, 1), 4, pixels=data.train.pixels.roll(1, 0))
        c = np.roll(first(moved, 1), -1)
        both = (a != data.truth) & (c != data.truth)
        agreement[pixels] = (a[both] == c[both]).mean()
    assert agreement["raw"] > 0.95
    assert agreement["unit"] < 0.75


@pytest.mark.parametrize("eta", [0.0, 0.35, 1.0])
def test_without_spread_every_sample_has_the_rate_of_instance_noise(eta):
    noise, data = Instance(eta, 0.0, "raw", "shared"), imaged()
    assert (noise.sample_rates(10, stream(1, "noise")) == eta).all()
    assert noise.expected == eta
    assert within(share(noise(data, 1), data.truth), eta, 6000)


def test_confusion_excludes_the_true_class():
    p = confusion(np.array([[1000.0, 999.0, -1000.0]]), 1)
    assert p.tolist() == [[1.0, 0.0, 0.0]]
