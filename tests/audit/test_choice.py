"""Which probabilities an audit takes: those that rank spoiled test labels best."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from flnl.audit.choice import DRAWS, ENOUGH, SPOILED, choose
from flnl.audit.scores import label_scores
from flnl.core.streams import stream

CLASSES = 5
LABELS = np.random.default_rng(0).integers(0, CLASSES, 300)


def seen(accuracy: float, sureness: float, seed: int = 1) -> NDArray[np.float32]:
    """Probabilities [300, 5] of a model that is right on a share of the samples, and so sure of what it says."""
    rng = np.random.default_rng(seed)
    said = np.where(rng.random(len(LABELS)) < accuracy, LABELS, (LABELS + rng.integers(1, CLASSES, 300)) % CLASSES)
    noise = rng.dirichlet(np.ones(CLASSES), len(LABELS))
    return (sureness * np.eye(CLASSES)[said] + (1 - sureness) * noise).astype(np.float32)


def average_precision(wrong: NDArray[np.bool_], score: NDArray[np.float64]) -> float:
    """By its definition: at each wrong label, the share of wrong ones among those ranked as high."""
    order = sorted(range(len(score)), key=lambda i: score[i])
    shares = [sum(wrong[order[: k + 1]]) / (k + 1) for k in range(len(order)) if wrong[order[k]]]
    return float(np.mean(shares))


@pytest.mark.parametrize("score", ["self_confidence", "normalized_margin"])
def test_a_fifth_of_the_test_labels_is_spoiled_and_ranked(score: Any) -> None:
    candidates = {"window": seen(0.6, 0.5), "final": seen(0.7, 0.8, seed=2)}
    choice = choose(candidates, LABELS, score, seed=7)
    for one, rows in zip(choice.compared, candidates.values(), strict=True):
        expected = []
        for draw in range(DRAWS):
            random = stream(7, "audit choice", draw)
            at = random.permutation(300)[:60]
            spoiled = LABELS.copy()
            spoiled[at] = (LABELS[at] + random.integers(1, CLASSES, 60)) % CLASSES
            assert (spoiled != LABELS).sum() == 60
            expected.append(average_precision(spoiled != LABELS, label_scores(score, spoiled, rows.astype(np.float64))))
        assert one.average_precision == pytest.approx(np.mean(expected), abs=1e-12)
        assert one.accuracy == np.mean([row.argmax() == label for row, label in zip(rows, LABELS, strict=True)])
    assert (choice.spoiled, choice.draws) == (SPOILED, DRAWS) == (0.2, 10)


def test_the_best_ranking_is_taken_and_not_the_best_accuracy() -> None:
    """A model that is right as often, but as sure where it errs as elsewhere, ranks worse."""
    rng = np.random.default_rng(3)
    unsure = seen(1.0, 0.3)
    blind = np.eye(CLASSES, dtype=np.float32)[np.where(rng.random(300) < 0.9, LABELS, (LABELS + 1) % CLASSES)]
    flat = unsure.copy()
    flat[:60] = 1 / CLASSES  # right by chance only, and says so
    choice = choose({"window": blind, "all": flat, "final": seen(0.5, 0.9)}, LABELS, "self_confidence", 0)
    accuracies = [one.accuracy for one in choice.compared]
    assert accuracies[0] > accuracies[1] > accuracies[2]
    assert choice.taken == "all"
    assert choice.reason.startswith("on the test set all finds labels that were spoiled on purpose best: ")
    for one in choice.compared:
        assert f"{one.name} {one.average_precision:.3f} ({100 * one.accuracy:.1f} %)" in choice.reason


def test_of_equal_candidates_the_first_is_taken() -> None:
    rows, worse = seen(0.8, 0.6), seen(0.3, 0.6)
    assert choose({"window": rows, "all": rows, "final": worse}, LABELS, "self_confidence", 0).taken == "window"
    assert choose({"window": worse, "all": rows, "final": rows}, LABELS, "self_confidence", 0).taken == "all"


def test_later_models_are_taken_only_if_clearly_ahead() -> None:
    """The test set does not show what they have memorised of the clients' labels."""
    early = seen(0.8, 0.3)
    late = early.copy()
    (wrong, *_) = np.flatnonzero(early.argmax(axis=1) != LABELS)
    late[wrong] = 0.9 * early[wrong] + 0.1 * np.eye(CLASSES)[LABELS[wrong]]
    for names, late_first in ((("window", "final"), False), (("final", "window"), True)):
        rows = (late, early) if late_first else (early, late)
        choice = choose(dict(zip(names, rows, strict=True)), LABELS, "self_confidence", 0)
        one, other = (compared.average_precision for compared in choice.compared)
        assert 0 < abs(other - one) < 0.01
        assert choice.taken == names[0]
        how = "best" if late_first else "about as well as final, which has later models"
        assert choice.reason.startswith(f"on the test set {names[0]} finds labels that were spoiled on purpose {how}: ")


def test_few_test_samples_choose_nothing() -> None:
    worse, better = seen(0.3, 0.6), seen(0.9, 0.6)
    few = ENOUGH - 1
    choice = choose({"window": worse[:few], "final": better[:few]}, LABELS[:few], "self_confidence", 0)
    assert (choice.taken, choice.compared) == ("window", ())
    assert choice.reason == "window by default: 199 test samples are too few to compare it with others"
    enough = choose({"window": worse[:ENOUGH], "final": better[:ENOUGH]}, LABELS[:ENOUGH], "self_confidence", 0)
    assert enough.taken == "final"


def test_the_same_seed_spoils_the_same_labels() -> None:
    candidates = {"window": seen(0.6, 0.5), "final": seen(0.7, 0.8)}
    one, again, other = (choose(candidates, LABELS, "self_confidence", seed) for seed in (1, 1, 2))
    assert one == again
    assert one != other
