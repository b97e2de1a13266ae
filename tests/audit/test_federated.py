"""The pooled estimate of many clients is the one of all samples, and label privacy costs one draw."""

from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flnl.audit import label_privacy
from flnl.audit.counting import ProbabilitySums, confident_class, joint_counts
from flnl.audit.filters import Lowest
from flnl.audit.joint import calibrated, with_diagonal
from flnl.audit.label_privacy import (
    RandomisedSums,
    drawn_labels,
    recovered,
    recovered_disagreements,
    recovered_joint,
)
from flnl.numerics.randomised_response import RandomisedResponse
from tests.audit.test_confident_learning import issues
from tests.audit.vectors import near, samples, vectors

ENTRY = vectors()["federated"]
LABELS, PROBABILITIES = samples(ENTRY)
K = PROBABILITIES.shape[1]
CLIENTS = [np.array(client["samples"]) for client in ENTRY["clients"]]


def pooled(parts: list[Any]) -> tuple[ProbabilitySums, Any]:
    """Both rounds of messages of clients with these samples."""
    sums = reduce(add, [ProbabilitySums.of(LABELS[i], PROBABILITIES[i]) for i in parts])
    confident = [confident_class(PROBABILITIES[i], sums.thresholds) for i in parts]
    return sums, sum(joint_counts(LABELS[i], found, K) for i, found in zip(parts, confident, strict=True))


def test_clients_send_what_the_vectors_say() -> None:
    for client, index in zip(ENTRY["clients"], CLIENTS, strict=True):
        sums = ProbabilitySums.of(LABELS[index], PROBABILITIES[index])
        assert sums.counts.tolist() == client["label_counts"]
        assert sums.sums / 2**32 == near(client["probability_sums"])


def test_pooled_is_centralised() -> None:
    sums, counts = pooled(CLIENTS)
    expected, central = ENTRY["pooled"], ENTRY["cleanlab_centralised"]
    assert sums.counts.tolist() == expected["label_counts"]
    assert sums.thresholds.tolist() == expected["thresholds_fixed_point"]
    assert sums.thresholds == near(central["thresholds"])
    assert counts.tolist() == expected["confident_counts"]
    assert with_diagonal(counts).tolist() == central["confident_joint"]
    assert calibrated(with_diagonal(counts), sums.counts).tolist() == central["confident_joint_calibrated"]
    for name, indices in central["find_label_issues"].items():
        assert issues(LABELS, PROBABILITIES, name) == indices, name


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 5), min_size=60, max_size=60), st.randoms(use_true_random=False))
def test_any_split_in_any_order_gives_the_same_bits(owner: list[int], random: Any) -> None:
    parts = [np.flatnonzero(np.array(owner) == c) for c in range(6)]
    random.shuffle(parts)
    for part in parts:
        random.shuffle(part)
    sums, counts = pooled(parts)
    whole, joint = pooled([np.arange(60)])
    assert sums.thresholds.tobytes() == whole.thresholds.tobytes()
    assert np.array_equal(counts, joint)


def test_each_wrong_way_differs() -> None:
    sums, counts = pooled(CLIENTS)
    wrong = ENTRY["wrong_ways"]
    each = [ProbabilitySums.of(LABELS[i], PROBABILITIES[i]) for i in CLIENTS]
    local = np.array([one.thresholds for one in each])
    assert local == near(wrong["clients' own thresholds"])
    holds = np.array([one.counts > 0 for one in each])
    mean = np.where(holds, local, 0).sum(0) / holds.sum(0)
    assert mean == near(wrong["unweighted mean of the thresholds of the clients that hold the class"])
    assert np.abs(mean - sums.thresholds).min() > 0.005
    confident = [joint_counts(LABELS[i], confident_class(PROBABILITIES[i], sums.thresholds), K) for i in CLIENTS]
    raised = np.sum([with_diagonal(one) for one in confident], axis=0)
    assert raised.tolist() == wrong["diagonal clipped by each client before summing"]
    assert raised.tolist() != counts.tolist()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.booleans())
def test_bisection_on_the_clients_counts_finds_the_same_cut(seed: int, wanted: int, tied: bool) -> None:
    """Forty times the server asks all clients how many of their values lie below a number, and adds the answers."""
    rng = np.random.default_rng(seed)
    values, owner = rng.random(60), np.sort(rng.integers(0, 5, 60))
    values = np.round(values * 8) / 8 if tied else values
    low, high = -1.0, 2.0
    for _ in range(40):
        middle = (low + high) / 2
        below = sum(int((values[owner == client] < middle).sum()) for client in range(5))
        low, high = (middle, high) if below < wanted else (low, middle)
    near_the_cut = (values >= low) & (values < high)
    taken = int((values < low).sum())
    found = (values < low) | (near_the_cut & (np.cumsum(near_the_cut) <= wanted - taken))
    lowest = Lowest(wanted)
    for part in np.split(np.arange(60), [7, 21, 50]):
        lowest.add(values[part], part)
    assert lowest.cut.below(values, np.arange(60)).tolist() == found.tolist()


# ----------------------------------------------------------------------------------------------------- label privacy

PRIVACY = vectors()["label_privacy"]
RESPONSE = RandomisedResponse(PRIVACY["epsilon"], K)


def test_the_inverse_recovers_expectations() -> None:
    assert (RESPONSE.keep, RESPONSE.other) == pytest.approx((PRIVACY["a"], PRIVACY["b"]), abs=1e-12)
    counts = np.array(PRIVACY["expected_counts_after_randomised_response"])
    assert recovered(RESPONSE, counts) == near(PRIVACY["label_counts"])
    sums = recovered(RESPONSE, np.array(PRIVACY["expected_sums_after"]))
    assert sums == near(PRIVACY["class_probability_sums_full"])
    assert sums.diagonal() == near(PRIVACY["recovered_diagonal_sums"])
    joint = recovered_joint(RESPONSE, np.array(PRIVACY["expected_joint_counts_after"]))
    assert joint == near(np.maximum(PRIVACY["recovered_joint_counts"], 0))


def test_recovered_totals_have_no_bias() -> None:
    """The mean over 2,000 draws is within four standard errors of the totals without privacy."""
    confident = confident_class(PROBABILITIES, ProbabilitySums.of(LABELS, PROBABILITIES).thresholds)
    agree = np.array([(PROBABILITIES.argmax(1) == LABELS).sum()])
    found = []
    for seed in range(2000):
        drawn = drawn_labels(RESPONSE, [LABELS], [0], seed.to_bytes(32))
        sums = RandomisedSums.of(drawn, PROBABILITIES)
        joint = recovered(RESPONSE, joint_counts(drawn, confident, K))
        still = np.array([(drawn == PROBABILITIES.argmax(1)).sum()])
        disagreeing = 60 - (still - RESPONSE.other * 60) / RESPONSE.gap
        parts = (recovered(RESPONSE, sums.counts), recovered(RESPONSE, sums.sums / 2**32).diagonal(), joint.ravel())
        found.append(np.concatenate([*parts, disagreeing]))
    plain = ProbabilitySums.of(LABELS, PROBABILITIES)
    exact = np.concatenate([plain.counts, plain.sums / 2**32, joint_counts(LABELS, confident, K).ravel(), 60 - agree])
    error = np.std(found, axis=0, ddof=1) / np.sqrt(len(found))
    assert (np.abs(np.mean(found, axis=0) - exact) < 4 * error + 1e-12).all()
    assert recovered_disagreements(RESPONSE, np.array([60]), np.array([60])).tolist() == [0.0]


def test_each_client_draws_from_a_stream_of_its_own() -> None:
    parts = [LABELS[i] for i in CLIENTS]
    secret = b"s" * 32
    all_of_them = drawn_labels(RESPONSE, parts, [0, 1, 2, 3], secret)
    alone = drawn_labels(RESPONSE, parts[2:3], [2], secret)
    start = sum(map(len, parts[:2]))
    assert all_of_them[start : start + len(alone)].tolist() == alone.tolist()
    assert drawn_labels(RESPONSE, parts[2:3], [3], secret).tolist() != alone.tolist()
    assert label_privacy.PURPOSE not in ("label privacy", "noise", "client")


def test_a_class_recovered_below_half_a_sample_is_absent() -> None:
    labels = np.zeros(60, np.int64)
    sums = RandomisedSums.of(labels, PROBABILITIES)  # more of class 0 than any draw should give
    counts = sums.recovered_counts(RESPONSE)
    assert counts[0] > 60
    assert counts[1:].tolist() == [0, 0, 0]
    assert sums.thresholds(RESPONSE)[1:].tolist() == [2, 2, 2]
