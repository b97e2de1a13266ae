"""Shares, rates and distances that runs are judged by, against counting by hand."""

import math
from dataclasses import astuple, replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import precision_recall_fscore_support, roc_auc_score

from flnl.evaluation.evaluator import Evaluator
from flnl.evaluation.metrics import (
    Memorization,
    accuracy_and_loss,
    detection,
    filter_accuracy,
    mean_memorization,
    memorization,
    training_stability,
    worst_client,
)
from flnl.numerics.distance import squared_move
from flnl.numerics.ranks import auroc
from flnl.record.closing import summarise
from tests.toys import composed


def test_accuracy_and_loss_are_means_over_samples():
    """Two of three right; of each sample, minus the logarithm of the softmax of its label."""
    logits, labels = [[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [5.0, 0.0, 1.0]], [0, 1, 2]
    accuracy, loss = accuracy_and_loss(torch.tensor(logits), torch.tensor(labels))
    assert accuracy == pytest.approx(2 / 3)
    each = [math.log(sum(map(math.exp, row))) - row[label] for row, label in zip(logits, labels, strict=True)]
    assert loss == pytest.approx(sum(each) / 3)


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=25))
@settings(deadline=None)
def test_auc_is_the_share_of_pairs_in_order(samples: list[tuple[int, bool]]):
    score, wrong = np.array([s for s, _ in samples], float), np.array([w for _, w in samples])
    pairs = [(a > b) + 0.5 * (a == b) for a in score[wrong] for b in score[~wrong]]
    found = auroc(score, wrong)
    if pairs:
        assert found == pytest.approx(np.mean(pairs))
        assert found == pytest.approx(roc_auc_score(wrong, score))
        assert auroc(-score, wrong) == pytest.approx(1 - found)
    else:
        assert math.isnan(found)


def test_auc_of_flags_is_the_mean_of_both_rates():
    flags, wrong = np.array([True, True, False, False, True]), np.array([True, False, True, False, True])
    assert auroc(flags.astype(float), wrong) == pytest.approx((2 / 3 + 1 / 2) / 2)


def test_detection_of_flags():
    rng = np.random.default_rng(0)
    flagged, wrong = rng.random(50) < 0.4, rng.random(50) < 0.5
    expected = precision_recall_fscore_support(wrong, flagged, average="binary")[:3]
    assert tuple(detection(flagged, wrong).values()) == pytest.approx(expected)
    assert math.isnan(detection(np.zeros(3, bool), wrong[:3])["precision"])


def test_accuracy_of_a_filter():
    true, given_ = np.array([0, 1, 2, 0]), np.array([0, 1, 0, 1])
    assert filter_accuracy(np.array([True, False, False, False]), given_, true) == 0.75
    assert filter_accuracy(np.array([False, False, True, True]), given_, true) == 0
    assert math.isnan(filter_accuracy(np.zeros(0, bool), given_[:0], true[:0]))


def test_memorization_by_hand():
    true = np.array([0, 0, 0, 1, 1, 1, 1])
    held = np.array([0, 0, 0, 2, 2, 0, 0])
    seen = np.array([0, 0, 2, 1, 2, 2, 0])
    found = memorization(seen, held, true)
    assert astuple(found) == pytest.approx((2 / 3, 1 / 3, 1 / 4, 2 / 4, 1 / 4))


@given(st.lists(st.tuples(*[st.integers(0, 3)] * 3), max_size=30))
@settings(deadline=None)
def test_each_group_sums_to_one(samples: list[tuple[int, int, int]]):
    predicted, held, true = (np.array([s[i] for s in samples], np.int64) for i in range(3))
    found = memorization(predicted, held, true)
    clean = found.clean_correct + found.clean_wrong
    noisy = found.noisy_correct + found.noisy_memorized + found.noisy_wrong
    assert clean == pytest.approx(1) if (held == true).any() else math.isnan(clean)
    assert noisy == pytest.approx(1) if (held != true).any() else math.isnan(noisy)


def test_local_memorization_is_over_noisy_clients():
    none = math.nan
    clients = [
        Memorization(0.9, 0.1, 0.2, 0.7, 0.1),
        Memorization(0.1, 0.9, none, none, none),  # no wrong label: no noisy client
        Memorization(none, none, 0.4, 0.1, 0.5),  # no right one
    ]
    assert astuple(mean_memorization(clients)) == pytest.approx((0.9, 0.1, 0.3, 0.4, 0.3))
    assert all(math.isnan(x) for x in astuple(mean_memorization([])))


def test_training_stability_is_a_mean_of_squared_distances():
    received = {"w": torch.tensor([1.0, 2.0]), "mean": torch.tensor([0.0])}
    trained = [
        {"w": torch.tensor([4.0, 6.0]), "mean": torch.tensor([9.0])},
        {"w": torch.tensor([1.0, 2.0]), "mean": torch.tensor([9.0])},
    ]
    assert training_stability([squared_move(received, t, ["w"]) for t in trained]) == 12.5
    assert training_stability([squared_move(received, t, ["w", "mean"]) for t in trained]) == 12.5 + 81
    assert math.isnan(training_stability([]))


def test_held_out_samples_are_scored_on_the_labels_that_clients_were_given_and_on_the_true_ones():
    """Each sample counts once, whoever held it; none of them is in training, and so in no audit."""
    run = composed("method=fedavg", "rounds=2", "noise=symmetric", "noise.eta=0.5", "eval.validation=0.3")
    federation, params = run.federation, run.rounds[-1].state.server.params
    found = Evaluator(federation, run.network, run.method).model(params)
    held_out = [int(i) for i in federation.validation]
    assert not {*held_out} & {*map(int, federation.held)}
    assert federation.truth is not None
    predicted = run.network.outputs(federation.dataset.train, torch.tensor(held_out)).argmax(1).tolist()
    shares = []
    for labels, name in ((federation.given, "validation_accuracy"), (federation.truth, "validation_true_accuracy")):
        right = sum(guess == int(labels[i]) for guess, i in zip(predicted, held_out, strict=True))
        assert found[name] == pytest.approx(right / len(held_out))
        shares.append(found[name])
    assert shares[0] != shares[1]
    assert len(held_out) == 36, "three of ten samples of each client"


def test_the_worst_client_is_that_of_the_classes_which_are_predicted_worst():
    labels = np.array([0, 0, 0, 0, 1, 1, 3])
    right = np.array([1, 1, 1, 0, 1, 0, 0], bool)  # 3/4 of class 0, 1/2 of class 1, none of class 3
    classes = np.array([[8, 0, 0, 0], [2, 2, 6, 0], [0, 0, 5, 0]])  # no sample of class 2 is tested
    assert worst_client(right, labels, classes) == (0.75 + 0.5) / 2
    assert worst_client(right, labels, classes[2:]) is None
    assert worst_client(right, labels, np.array([[1, 0, 0, 0], [0, 0, 0, 1]])) == 0


def test_the_worst_client_is_by_right_classes_of_training_samples():
    run = composed("method=fedavg", "rounds=1", "noise=symmetric", "noise.eta=0.6", "partition=shards")
    federation, params = run.federation, run.rounds[-1].state.server.params
    found = Evaluator(federation, run.network, run.method).model(params)
    tested = torch.from_numpy(federation.tested)
    right = run.network.outputs(federation.dataset.test, tested).argmax(1).numpy()
    labels = federation.dataset.test_labels[federation.tested]
    assert federation.truth is not None
    each = [
        np.mean([np.mean(right[labels == c] == c) for c in federation.truth[federation.clients[k]].tolist()])
        for k in federation.with_data
    ]
    assert found["accuracy_worst_client"] == pytest.approx(min(each))
    assert max(each) > min(each), "the shards have other classes"


@pytest.mark.parametrize("where", ["noise=fedcorr", "noise=none", "eval.validation=0.3"])
def test_an_evaluator_counts_what_the_model_memorised(where: str):
    """Sample by sample, over what the clients hold; of clean labels only the clean group is there."""
    run = composed("method=fedavg", "rounds=2", where)
    federation, params = run.federation, run.rounds[-1].state.server.params
    plain, found = (Evaluator(federation, run.network, run.method, on).model(params) for on in (False, True))
    assert found.items() >= plain.items()
    assert not any("memorization" in name for name in plain)
    assert federation.truth is not None
    groups: dict[bool, list[str]] = {True: [], False: []}
    for client in federation.with_data:
        samples = federation.samples(client)
        guesses = run.network.logits(samples).argmax(1).tolist()
        for i, guess, given_label in zip(samples.index.tolist(), guesses, samples.given.tolist(), strict=True):
            true = int(federation.truth[i])
            memorized = "memorized" if guess == given_label else "wrong"
            groups[given_label == true].append("correct" if guess == true else memorized)
    for group, name, outcomes in (
        (groups[True], "clean", ("correct", "wrong")),
        (groups[False], "noisy", ("correct", "memorized", "wrong")),
    ):
        for outcome in outcomes:
            share = group.count(outcome) / len(group) if group else math.nan
            assert found[f"memorization_{name}_{outcome}"] == pytest.approx(share, nan_ok=True)
    assert len(groups[True]) > 0
    assert (len(groups[False]) == 0) == (where == "noise=none")
    unknown = replace(federation, truth=None)
    by_truth = {"validation_true_accuracy", "accuracy_worst_client"}
    without = {name: value for name, value in plain.items() if name not in by_truth}
    assert Evaluator(unknown, run.network, run.method, True).model(params) == without


@pytest.mark.parametrize(
    ("held_out", "accuracy"),
    [
        ([0.5, 0.7, 0.7, 0.6], 0.3),  # the first of two that are equally good, though the second tests better
        ([0.7, 0.7, 0.7, 0.7], 0.2),
        ([0.1, 0.2, 0.3, 0.4], 0.9),
    ],
)
def test_of_equally_good_evaluations_the_first_is_taken(held_out: list[float], accuracy: float) -> None:
    rows = [{"accuracy": a, "validation_accuracy": v} for a, v in zip([0.2, 0.3, 0.8, 0.9], held_out, strict=True)]
    assert summarise(rows)["at_best_validation"] == accuracy


def test_the_closing_accuracy_on_held_out_samples_is_by_true_labels() -> None:
    rows = [{"accuracy": 0.5, "validation_true_accuracy": a} for a in (1.0, *[0.25] * 5, *[0.75] * 5)]
    assert summarise(rows)["validation_true_mean_last_10"] == 0.5
    assert "validation_true_mean_last_10" not in summarise([*rows, {"accuracy": 0.5}])


def test_the_closing_number_of_the_worst_client_is_over_the_last_ten_evaluations() -> None:
    rows = [{"accuracy": 0.9, "accuracy_worst_client": a} for a in (1.0, *[0.25] * 5, *[0.75] * 5)]
    assert summarise(rows)["worst_client_mean_last_10"] == 0.5
    assert "worst_client_mean_last_10" not in summarise([{"accuracy": 0.9}, *rows]), "an older version began the run"


def test_closing_accuracies_by_hand() -> None:
    """The last ten of twelve: the first two are not in their mean; the best ten are the second and on."""
    rows = [{"accuracy": a} for a in (0.25, 1.0, *[0.5] * 5, *[0.75] * 5)]
    assert summarise(rows) == {"best": 1.0, "last": 0.75, "mean_last_10": 0.625, "best_mean_10": 0.65}
    assert summarise(rows[:1]) == {"best": 0.25, "last": 0.25, "mean_last_10": 0.25, "best_mean_10": 0.25}
    assert summarise([]) == {}
