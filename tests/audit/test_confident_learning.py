"""Scores, thresholds, joint, latent estimates and filters against cleanlab's, case by case."""

import math
from collections.abc import Iterator
from typing import Any, get_args

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from flnl.audit.counting import NOBODY, ProbabilitySums, confident_class, joint_counts
from flnl.audit.filters import OffDiagonal, pruned_counts, rule_of
from flnl.audit.joint import calibrated, estimated_issues, latent, with_diagonal
from flnl.audit.options import Filter
from flnl.audit.scores import adjusted, label_scores, ranks
from flnl.evaluation.label_audit import average_precision
from tests.audit.vectors import near, samples, vectors

CASES = vectors()["cases"]
FIXED = vectors()["fixed"]
by_name = pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])


def estimated(labels: Any, probabilities: Any) -> tuple[Any, Any, Any, Any]:
    """Sums, thresholds, joint and calibrated joint of the pooled samples."""
    sums = ProbabilitySums.of(labels, probabilities)
    counts = joint_counts(labels, confident_class(probabilities, sums.thresholds), probabilities.shape[1])
    joint = with_diagonal(counts)
    return sums, sums.thresholds, joint, calibrated(joint, sums.counts)


def issues(labels: Any, probabilities: Any, name: Any, block: int = 7) -> list[int]:
    """The indices that a filter marks, read in blocks."""
    _, thresholds, _, scaled = estimated(labels, probabilities)

    def blocks() -> Iterator[Any]:
        for start in range(0, len(labels), block):
            index = np.arange(start, min(start + block, len(labels)))
            yield index, labels[index], probabilities[index]

    off_diagonal = int(OffDiagonal(thresholds)(labels, probabilities).sum())
    rule = rule_of(name, blocks, thresholds, scaled, off_diagonal)
    return [i for index, y, p in blocks() for i in index[rule(y, p, index)].tolist()]


@by_name
def test_scores_and_thresholds(case: Any) -> None:
    labels, probabilities = samples(case)
    thresholds = ProbabilitySums.of(labels, probabilities).thresholds
    assert thresholds == near(case["confident_thresholds"])
    shifted = adjusted(probabilities, thresholds)
    assert shifted == near(case["adjusted_pred_probs"])
    assert len(case["label_quality_scores"]) == 5
    for name, expected in case["label_quality_scores"].items():
        used = shifted if name.endswith("_adjusted") else probabilities
        ours = label_scores(name.removesuffix("_adjusted"), labels, used)
        if name == "confidence_weighted_entropy":  # cleanlab's has a floor under the label's probability
            impossible = probabilities[np.arange(len(labels)), labels] == 0
            assert ours[impossible].tolist() == [0.0] * impossible.sum()
            expected = np.where(impossible, 0.0, expected).tolist()
        assert ours == near(expected), name


@by_name
def test_joint_and_latent_estimates(case: Any) -> None:
    labels, probabilities = samples(case)
    sums, thresholds, joint, scaled = estimated(labels, probabilities)
    assert joint.tolist() == case["confident_joint"]
    assert scaled.tolist() == case["confident_joint_calibrated"]
    assert scaled / len(labels) == near(case["joint"])
    confident = confident_class(probabilities, thresholds)
    off = (confident != NOBODY) & (confident != labels)
    assert np.flatnonzero(off).tolist() == case["off_diagonal_indices"]
    found, expected = latent(scaled, sums.counts), case["estimate_latent"]["cnt"]
    assert found.prior == near(expected["py"])
    assert found.noise == near(expected["noise_matrix"])
    assert found.inverse_noise == near(expected["inverse_noise_matrix"])


@pytest.mark.parametrize("case", [c for c in CASES if "find_label_issues" in c], ids=lambda c: c["name"])
def test_filters(case: Any) -> None:
    labels, probabilities = samples(case)
    for name in get_args(Filter):
        assert issues(labels, probabilities, name) == case["find_label_issues"][name], name
    counted = case["num_label_issues"]
    listed = issues(labels, probabilities, "confident_learning")
    assert len(listed) == counted["off_diagonal"]
    assert estimated_issues(estimated(labels, probabilities)[3]) == counted["off_diagonal_calibrated"]
    order = ranks(label_scores("self_confidence", labels, probabilities))
    assert sorted(listed, key=lambda i: order[i]) == case["ranked_confident_learning_self_confidence"]


@pytest.mark.parametrize("entry", [f for f in FIXED if f["what"] == "calibrate_confident_joint"])
def test_calibration_of_given_joints(entry: Any) -> None:
    found = calibrated(np.array(entry["confident_joint"]), np.array(entry["label_counts"]))
    assert found.tolist() == entry["out"]
    assert found.sum(axis=1).tolist() == entry["label_counts"]


def test_halves_of_a_calibrated_joint_are_rounded_to_even() -> None:
    """Row 0 is scaled by 20/8 to exactly 12.5 and 7.5; 5 * (20 / 8) and (5 / 8) * 20 are 12.5, 3 * 20 / 8 is 7.5."""
    assert calibrated(np.array([[5, 3], [5, 2]]), np.array([20, 9])).tolist() == [[12, 8], [6, 3]]


@pytest.mark.parametrize("entry", [f for f in FIXED if f["what"].startswith("compute_confident_joint")])
def test_joint_of_given_thresholds(entry: Any) -> None:
    labels, probabilities = samples(entry)
    confident = confident_class(probabilities, np.array(entry["thresholds"]))
    assert with_diagonal(joint_counts(labels, confident, probabilities.shape[1])).tolist() == entry["out"]


def test_counts_to_prune_keep_enough_of_each_class() -> None:
    (entry,) = [f for f in FIXED if f["what"] == "keep_at_least_n_per_class"]
    counts = np.array(entry["prune_count_matrix"])
    assert pruned_counts(counts, entry["n"]).tolist() == entry["out"]


def test_a_certain_label_has_the_best_entropy_score() -> None:
    entry = vectors()["ours"]["confidence_weighted_entropy_limit"]
    labels, probabilities = samples(entry)
    found = label_scores("confidence_weighted_entropy", labels, probabilities)
    assert found.tolist() == entry["ours"] != entry["cleanlab"]
    certain = np.array([[1 - 1e-9, 1e-9]])  # just above the limit, the score is as near to 1
    assert label_scores("confidence_weighted_entropy", np.array([0]), certain)[0] == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("own", [0.0, 1e-300, 1e-16, 1e-12, 1e-9, 1e-6, 1e-3])
def test_a_label_that_is_certainly_wrong_has_a_low_entropy_score(own: float) -> None:
    """The surer the model is of another class, the less the entropy; it must not make up for the probability."""
    labels, probabilities = np.array([0, 0]), np.array([[own, 1 - own], [0.5, 0.5]])
    wrong, doubtful = label_scores("confidence_weighted_entropy", labels, probabilities)
    with np.errstate(divide="ignore", invalid="ignore"):
        entropy = -np.nansum(probabilities[0] * np.log2(probabilities[0]))
    x = float(entropy) / own if own else math.inf
    assert wrong == pytest.approx(0.0 if math.isinf(x) else math.log1p(x) / x, rel=1e-9)
    assert wrong < 0.5 * doubtful == pytest.approx(0.5 * math.log(3) / 2)


def test_wrong_labels_under_a_confident_model_rank_first() -> None:
    """Logistic regression of the digits, hardly regularised, five folds, 5 % wrong labels; docs/audit_measured.md."""
    images, true = load_digits(return_X_y=True)
    model = make_pipeline(StandardScaler(), LogisticRegression(C=1e4, max_iter=1000))
    probabilities = cross_val_predict(model, images, true, cv=5, method="predict_proba")
    for seed in (1, 2, 3):
        rng = np.random.default_rng(seed)
        given = np.where(rng.random(len(true)) < 0.05, (true + rng.integers(1, 10, len(true))) % 10, true)
        ranked = [
            average_precision((given != true)[np.argsort(label_scores(score, given, probabilities), kind="stable")])
            for score in ("self_confidence", "confidence_weighted_entropy")
        ]
        assert (ranked[0] > 0.905, ranked[1] > 0.835) == (True, True), ranked


def test_a_probability_a_little_outside_the_unit_interval_has_a_score() -> None:
    probabilities = np.array([[1 + 9e-7, -9e-7], [-9e-7, 1 + 9e-7]])
    assert label_scores("confidence_weighted_entropy", np.array([0, 0]), probabilities).tolist() == [1.0, 0.0]


def test_equal_scores_are_ranked_by_client_and_position() -> None:
    entry = vectors()["ours"]["stable_order"]
    place = np.lexsort((entry["positions"], entry["clients"]))  # the order of labels.csv
    rank = ranks(np.array(entry["scores"])[place])
    assert place[np.argsort(rank)].tolist() == entry["order_by_score_then_client_then_position"]


@pytest.mark.parametrize("block", [1, 3, 40])
@pytest.mark.parametrize("name", ["prune_by_class", "prune_by_noise_rate", "both", "low_self_confidence"])
def test_ties_at_a_cut_are_taken_in_order_whatever_the_blocks(name: Any, block: int) -> None:
    labels = np.zeros(40, np.int64)
    probabilities = np.tile([0.8, 0.2], (40, 1))
    probabilities[10:30] = [0.3, 0.7]
    probabilities[25] = [0.1, 0.9]
    places = np.arange(40)

    def blocks() -> Iterator[Any]:
        for start in range(0, 40, block):
            index = places[start : start + block]
            yield index, labels[index], probabilities[index]

    rule = rule_of(name, blocks, np.array([0.5, 2.0]), np.array([[34, 6], [0, 0]]), 6)
    marked = [i for index, y, p in blocks() for i in index[rule(y, p, index)].tolist()]
    assert marked == [10, 11, 12, 13, 14, 25]
    assert rule(labels, probabilities).sum() == 20, "of other samples, all at the cut"


def test_some_sample_of_every_class_reaches_its_own_threshold() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        probabilities = rng.dirichlet(np.full(4, 0.3), 30)
        labels = rng.integers(0, 4, 30)
        thresholds = ProbabilitySums.of(labels, probabilities).thresholds
        for k in np.unique(labels):
            assert (probabilities[labels == k, k] >= thresholds[k] - 1e-6).any()
