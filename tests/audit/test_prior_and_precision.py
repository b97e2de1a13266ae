"""The client prior and the expected precision."""

import numpy as np
import pytest

from flnl.audit.precision import CUTS, below_cuts, expected_precision, shares_of_test_set, wilson
from flnl.audit.prior import ClientPrior
from flnl.audit.scores import label_scores, ranks
from tests.audit.vectors import near, samples, vectors

OURS = vectors()["ours"]
CLIENT = np.array(vectors()["federated"]["client_of_sample"])
PROBABILITIES = samples(vectors()["federated"])[1]


@pytest.mark.parametrize("entry", OURS["client_prior"])
def test_client_prior(entry) -> None:
    labels = np.array(entry["labels"])
    disagreements = np.bincount(CLIENT, weights=PROBABILITIES.argmax(1) != labels)
    prior = ClientPrior.of(np.bincount(CLIENT), disagreements)
    scores = label_scores("normalized_margin", labels, PROBABILITIES)
    assert prior.rates == near(entry["rates"])
    assert prior.suspicion(scores, CLIENT) == near(entry["suspicion_quality"])
    assert (prior.shift is None) == (entry["kappa"] is None)


def test_clients_that_do_not_differ_leave_scores_alone() -> None:
    scores = np.array([0.0, 0.3, 1.0, 0.3])
    alike = ClientPrior.of(np.array([50, 50]), np.array([10, 11]))
    assert alike.suspicion(scores, np.array([0, 0, 1, 1])) is scores
    one = ClientPrior.of(np.array([100]), np.array([90]))
    assert one.suspicion(scores, np.zeros(4, np.int64)) is scores


def test_a_client_of_one_sample_is_judged_by_everyone() -> None:
    prior = ClientPrior.of(np.array([1, 200, 200]), np.array([1, 10, 120]))
    assert prior.shift is not None
    assert np.isfinite(prior.rates).all()
    assert 131 / 401 < prior.rates[0] < 0.99
    assert prior.rates[1] == pytest.approx(0.05, abs=0.01), "its own samples outweigh everyone's"


def test_extreme_scores_stay_in_range_and_in_order() -> None:
    prior = ClientPrior.of(np.array([100, 100]), np.array([0, 100]))
    scores = np.array([0.0, 1e-9, 0.5, 1.0, -1e-7])
    for client in (0, 1):
        found = prior.suspicion(scores, np.full(5, client))
        assert ((found > 0) & (found < 1)).all()
        assert found[1] < found[2] < found[3]


def test_expected_precision() -> None:
    entry = OURS["expected_precision"]
    scores, test = np.array(entry["train_scores"]), np.array(entry["test_scores"])
    cuts, nobody = np.array(entry["cuts"]), ClientPrior(np.array([0.5]), None)
    shares = shares_of_test_set(nobody, test, cuts)
    below = below_cuts(scores, np.zeros(len(scores), np.int64), 1, cuts)
    found = [expected_precision(shares[:, m], np.array([10]), below[:, m]) for m in range(len(cuts))]
    assert found == [None if out is None else pytest.approx(out, abs=1e-9) for out in entry["out"]]
    for one in entry["with_client_cuts"]:
        own = np.array([one["cut_0"], one["cut_1"]])
        share = (test[:, None] < own).mean(0)
        marked = np.array([(scores[:5] < own[0]).sum(), (scores[5:] < own[1]).sum()])
        assert expected_precision(share, np.array([5, 5]), marked) == pytest.approx(one["out"], abs=1e-9)


def test_cuts_on_suspicion_and_on_scores_mark_the_same_samples() -> None:
    rng = np.random.default_rng(1)
    client, scores = rng.integers(0, 3, 500), rng.random(500)
    scores[:20], scores[20:40] = 0.0, 1.0
    prior = ClientPrior.of(np.array([160, 170, 170]), np.array([10, 40, 150]))
    suspicion = prior.suspicion(scores, client)
    below = below_cuts(suspicion, client, 3)
    for m, cut in enumerate(CUTS):
        assert below[:, m].tolist() == [int((suspicion[client == c] < cut).sum()) for c in range(3)]
    for c in range(3):
        share = shares_of_test_set(prior, scores[client == c])[c]
        assert share == near(below[c] / (client == c).sum())


def test_wilson_interval() -> None:
    assert wilson(0, 0) == (0.0, 1.0)
    low, high = wilson(50, 50)
    assert np.allclose((low, high), (0.9287, 1.0), atol=1e-4)
    assert np.allclose(wilson(0, 50), (0.0, 1 - low))


def test_ranks_are_a_permutation() -> None:
    scores = np.random.default_rng(0).integers(0, 5, 100) / 5
    assert sorted(ranks(scores).tolist()) == list(range(100))
