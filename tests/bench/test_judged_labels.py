"""The benchmark of audits of labels that people judged: its data, its judgements, its measures."""

from pathlib import Path

import numpy as np
import pytest

from bench import judged_labels
from bench.judged_labels import Case, Judged, Row, by_cleanlab, measures, report, write_data
from flnl.config import compose
from flnl.data.dataset import Dataset

CIFAR = "original_position,position,file,given,guessed,votes_given,votes_guessed,votes_both,votes_neither\n"
MNIST = "id,given,guessed,votes_given,votes_guessed,votes_both,votes_neither\n"


def test_a_label_is_wrong_if_fewer_than_three_of_five_chose_it_alone(tmp_path: Path) -> None:
    cifar, mnist = tmp_path / "cifar.csv", tmp_path / "mnist.csv"
    cifar.write_text(f"{CIFAR}9,4,a.jpg,7,5,3,0,2,0\n8,2,b.jpg,0,3,2,1,2,0\n")
    mnist.write_text(f"{MNIST}7,4,6,0,5,0,0\n3,6,0,5,0,0,0\n")
    for file, positions, wrong in ((cifar, [4, 2], [False, True]), (mnist, [7, 3], [True, False])):
        judged = Judged.read(file)
        assert (judged.position.tolist(), judged.wrong.tolist()) == (positions, wrong)


def test_the_arrays_begin_with_the_published_test_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judged_labels, "MORE", 50)
    monkeypatch.setattr(judged_labels, "CLEAN", 20)
    write_data("digits", tmp_path, ["dataset.test_size=100"])
    digits: Dataset = compose.build(compose.load(["dataset=digits", "dataset.test_size=100"]).dataset)()
    held = np.load(tmp_path / "arrays.npz", allow_pickle=False)
    read = compose.build(compose.load(["dataset=arrays", f"dataset.root={tmp_path}"]).dataset)()
    assert (len(read.train), len(read.test)) == (150, 20)
    assert held["y_train"][:100].tolist() == digits.test_labels.tolist()
    assert digits.truth is not None
    pixels = {
        (images.tobytes(), label) for images, label in zip(read_all(digits.train), digits.truth.tolist(), strict=True)
    }
    assert np.array_equal(held["x_train"][:100], read_all(digits.test))
    others = np.concatenate([held["x_train"][100:], held["x_test"]])
    labels = [*held["y_train"][100:].tolist(), *held["y_test"].tolist()]
    drawn = [(image.tobytes(), label) for image, label in zip(others, labels, strict=True)]
    assert {*drawn} <= pixels
    assert len({*drawn}) == 70


def read_all(images: object) -> np.ndarray:
    import torch

    found: np.ndarray = images.read(torch.arange(len(images))).numpy()  # type: ignore[attr-defined,arg-type]
    return found


def test_the_judged_are_compared_among_themselves_and_found_among_all() -> None:
    """Ranks by hand: samples are in another order than the arrays', as clients hold them."""
    position = np.roll(np.arange(200), 50)
    score = np.full(200, 0.9)  # by position
    score[[3, 5, 7, 8]] = 0.01, 0.02, 0.03, 0.04
    score[[20, 21]] = 0.005, 0.006  # suspects that nobody judged
    rank = np.empty(200, np.int64)
    rank[np.argsort(score[position], kind="stable")] = np.arange(200)
    judged = Judged(np.array([8, 3, 5, 7]), np.array([False, True, False, True]))
    found = measures(judged, position, rank, score[position] < 0.025)
    assert found == {
        "judged": 4,
        "wrong": 2,
        "average_precision": pytest.approx((1 + 2 / 3) / 2),
        "auroc": 0.75,
        "precision_at_wrong": 0.5,
        "first_wrong": 0,
        "issues": 4,
        "issues_judged": 2,
        "issues_wrong": 1,
    }
    assert measures(judged, position, rank, score < 1)["issues_wrong"] == 2


def test_cleanlab_ranks_by_the_probability_of_the_label() -> None:
    rows = np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4], [0.05, 0.95]])
    rank, issue = by_cleanlab(np.array([0, 1, 1, 0]), np.tile(rows, (1, 1)))
    assert rank.tolist() == [3, 2, 1, 0]
    assert issue.dtype == np.bool_
    assert issue[3]


def test_the_report_says_what_the_audit_takes() -> None:
    row = Row("mnist", "fedavg", 1, "window", True, 100, 15, 0.25, 0.5, 0.2, 3, 40, 9, 4, 0.97)
    other = Row("mnist", "fedavg", 1, "final", False, 100, 15, 0.5, 0.75, 0.4, 6, 7, 2, 2, 0.97)
    text = report([row, other])
    assert "### MNIST, MLP: 100 judged labels, 15 of them wrong" in text
    assert (
        "| fedavg, window (taken in 1 of 1) | 1 | 0.250 (0.250 to 0.250) | 0.500 | 0.200 | 3 | 40 | 9 / 4 | 97.0 % |"
        in text
    )
    assert "| fedavg, final | 1 | 0.500" in text


def test_runs_of_the_judged_are_told_no_truth(tmp_path: Path) -> None:
    for case in (Case("mnist", "fedavg", 1), Case("cifar10", "pooled", 2)):
        assert {"dataset.truth=none", "noise=none"} <= {*case.overrides(tmp_path)}
    assert Case("cifar10", "pooled", 2).folds == 5
    assert Case("cifar10", "fedavg", 2).folds is None
