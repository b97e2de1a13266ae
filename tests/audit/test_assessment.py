"""The audit of labels, given their probabilities: clients together, blocks, refusals, expected precision."""

import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from flnl.audit import probability_table
from flnl.audit.assessment import Assessment, assess
from flnl.audit.clean_samples import CleanSamples
from flnl.audit.options import Filter, Options
from flnl.audit.precision import CUTS, largest_cut
from flnl.audit.probability_table import InFile, InMemory, read_arrays, rows_at
from flnl.audit.samples import LabelledSamples
from flnl.core.errors import UserError
from tests.audit.vectors import near, samples, vectors

ENTRY = vectors()["federated"]
LABELS, PROBABILITIES = samples(ENTRY)
CLIENT = np.array(ENTRY["client_of_sample"])
NAMES = [f"{i}.png" for i in range(60)]


def assessed(
    labels: Any = LABELS, probabilities: Any = PROBABILITIES, test: CleanSamples | None = None, **options: Any
) -> Assessment:
    """The samples of the federated vector, or with other labels or probabilities."""
    client = CLIENT[: len(labels)]
    table = InMemory(np.asarray(probabilities, np.float64))
    given = LabelledSamples(client, NAMES[: len(labels)], np.asarray(labels, np.int64))
    return assess(given, table, test, Options(**options))


@pytest.mark.parametrize("name", get_args(Filter))
def test_clients_find_together_what_cleanlab_finds_in_the_pool(name: Any) -> None:
    found = assessed(issues=name)
    central = ENTRY["cleanlab_centralised"]
    assert np.flatnonzero(found.is_issue).tolist() == central["find_label_issues"][name]
    assert found.joint.confident.tolist() == central["confident_joint"]
    assert found.joint.calibrated.tolist() == central["confident_joint_calibrated"]
    assert found.joint.off_diagonal == central["num_label_issues"]
    assert found.joint.thresholds.tolist() == ENTRY["pooled"]["thresholds_fixed_point"]


def clean(count: int = 400, seed: int = 0) -> CleanSamples:
    """Test samples of a model that is mostly right and sometimes sure of the wrong class."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 4, count)
    seen = np.where(rng.random(count) < 0.05, (labels + 1) % 4, labels)
    return CleanSamples(labels, rng.dirichlet(np.full(4, 0.3), count) * 0.5 + np.eye(4)[seen] * 0.5)


@pytest.mark.parametrize("name", get_args(Filter))
@pytest.mark.parametrize("values", [1, 4 * 7])
def test_blocks_change_nothing(name: Any, values: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def numbers(found: Assessment) -> list[Any]:
        arrays = (found.label_score, found.suspicion_score, found.rank, found.is_issue, found.joint.thresholds)
        return [*(array.tobytes() for array in arrays), found.precision]

    whole = numbers(assessed(issues=name, adjust=True, test=clean()))
    monkeypatch.setattr(probability_table, "VALUES", values)
    assert len(list(InMemory(PROBABILITIES).blocks())) == (60 if values == 1 else 9)
    assert numbers(assessed(issues=name, adjust=True, test=clean())) == whole


@pytest.mark.parametrize("entry", vectors()["refused"], ids=lambda entry: entry["why"])
def test_what_cleanlab_refuses_is_refused(entry: Any) -> None:
    parts = {"lengths differ": ["1 samples", "2"], "label without a column": ["client 0, sample 1.png", "label 2"]}
    parts |= {"outside [0,1] by more than 1e-6": ["client 0, sample 1.png", "1.1"], "negative label": ["0.png", "-1"]}
    with pytest.raises(UserError) as refusal:
        assessed(entry["labels"], entry["pred_probs"])
    assert [part for part in parts[entry["why"]] if part not in str(refusal.value)] == []


@pytest.mark.parametrize(
    ("rows", "part"),
    [
        ([[0.5, 0.5], [0.5, 0.502]], "sample 1.png: its probabilities sum to 1.002"),
        (
            [[0.5, 0.5], [np.nan, 0.5]],
            "sample 1.png: a probability is nan; the model .* diverged, .* smaller learning rate",
        ),
        ([[0.5, 0.5], [np.inf, 0.5]], "sample 1.png: a probability is inf"),
        ([[1.0], [1.0]], "at least two"),
    ],
)
def test_what_is_no_distribution_is_refused(rows: Any, part: str) -> None:
    with pytest.raises(UserError, match=part):
        assessed([0, 0], rows)


@pytest.mark.parametrize("row", [[0.5, 0.499], [0.5, 0.501]])
def test_a_sum_that_is_off_by_a_thousandth_is_allowed(row: list[float]) -> None:
    assert len(assessed([0, 0], [[0.5, 0.5], row]).rank) == 2


def test_a_single_given_class_and_rounding_are_allowed() -> None:
    found = assessed([0, 0, 0], [[1 + 9e-7, -9e-7], [0.3, 0.7004], [0.6, 0.4]])
    assert found.is_issue.tolist() == [False, True, False]
    assert found.joint.thresholds[1] == 2.0


def test_a_label_that_ties_with_the_best_class_is_no_issue() -> None:
    found = assessed([1, 1], [[0.5, 0.5], [0.5 + 1e-6, 0.5 - 1e-6]])
    assert found.predicted.tolist() == [0, 0]
    assert found.is_issue.tolist() == [False, True]


# ------------------------------------------------------------------------------------------------- expected precision


def test_the_precision_of_issues_is_that_of_their_cut() -> None:
    """With a margin, another class is more probable just where the score is below a half."""
    test = clean()
    found = assessed(test=test, prior="none", score="normalized_margin")
    assert found.precision.of_issues == pytest.approx(found.precision.expected[50])
    assert found.precision.of_issues is not None
    assert 0 < found.precision.of_issues < 1
    assert found.precision.below[50] == found.is_issue.sum()


@pytest.mark.parametrize("prior", ["client", "none"])
@pytest.mark.parametrize("least", [0.0, 0.5, 0.9, 0.95, 1.0])
def test_a_least_precision_keeps_the_issues_below_a_cut(prior: Any, least: float) -> None:
    test = clean()
    every, found = assessed(test=test, prior=prior), assessed(test=test, prior=prior, min_precision=least)
    assert found.cut is not None
    assert np.array_equal(found.is_issue, every.is_issue & (every.suspicion_score < found.cut))
    at = np.flatnonzero(found.cut == CUTS)[0]
    assert found.cut == 0 or (every.precision.expected[at] or 0) >= least


def test_at_the_cut_is_not_below_it() -> None:
    """A label with just the score of the cut is no issue, and a test sample with it is not marked."""
    scores = np.array([0.1, 0.3, 0.9, 0.9])
    test = CleanSamples(np.zeros(4, np.int64), np.stack([given := np.array([0.3, 0.3, 0.9, 0.9]), 1 - given], 1))
    found = assessed([0] * 4, np.stack([scores, 1 - scores], 1), test, prior="none", min_precision=0.9)
    assert found.cut == 0.3
    assert found.is_issue.tolist() == [True, False, False, False]
    assert found.precision.of_issues == 1
    assert (found.precision.below[30], found.precision.expected[30]) == (1, 1)


def test_the_cut_ignores_where_expected_errors_vanish() -> None:
    """Below the last cut lie all samples but not all of the test set, so that no right label seems to be there."""
    false, marked, cuts = (
        [0.0, 0.0, 4.0, 30.0, 0.0, np.inf],
        [0, 3, 20, 40, 60, 60],
        np.array([0, 0.1, 0.3, 0.5, 0.9, 1]),
    )
    assert largest_cut(false, marked, 0.8, cuts) == 0.3
    assert largest_cut(false, marked, 0.9, cuts) == 0.1
    assert largest_cut(false, marked, 0.5, cuts) == 0.9
    assert largest_cut([1.0, 1.0], [0, 1], 0.1, np.array([0.0, 0.5])) == 0.0
    assert largest_cut([9.0, 9.0], [0, 1], 0.0, np.array([0.0, 0.5])) == 0.5, "no precision is less than 0"


def test_a_cut_above_all_issues_lists_none() -> None:
    """Above the last issue the curve may rise again, where samples of clients score worse than those of the test."""
    rng = np.random.default_rng(0)
    labels = np.arange(60) % 2
    own = np.concatenate([[0.4, 0.45], rng.uniform(0.6, 0.8, 58)])
    test_own = np.concatenate([rng.uniform(0.2, 0.5, 10), rng.uniform(0.9, 1, 90)])
    every, found = (
        assessed(labels, _of(own, labels), CleanSamples(TEST, _of(test_own, TEST)), prior="none", min_precision=least)
        for least in (0.0, 0.5)
    )
    assert every.is_issue.sum() == 2
    assert every.precision.expected[80] == pytest.approx(1, abs=0.1), "of samples that are no issues"
    assert not found.is_issue.any()
    assert found.cut == 0


TEST = np.arange(100) % 2


def _of(own: Any, labels: Any) -> Any:
    """Probabilities [n, 2] that give the given label ``own`` [n]."""
    return np.where(np.eye(2, dtype=bool)[labels], own[:, None], 1 - own[:, None])


def test_nothing_stands_out_of_samples_like_those_of_the_test_set() -> None:
    one, other = clean(60, seed=2), clean(400, seed=1)
    for prior in ("client", "none"):
        found = assessed(one.labels, one.probabilities, other, prior=prior, min_precision=0.8)
        assert (found.cut, found.is_issue.sum(), found.precision.of_issues) == (0.0, 0, None)
    assert assessed(one.labels, one.probabilities, other).is_issue.sum() > 0


def test_without_test_samples_there_is_no_expected_precision() -> None:
    found = assessed()
    assert {*found.precision.expected} == {None}
    assert (found.precision.of_issues, found.precision.test_samples) == (None, 0)
    with pytest.raises(UserError, match="--min-precision"):
        assessed(min_precision=0.5)


def test_test_samples_of_several_models_count_once() -> None:
    test = clean()
    several = CleanSamples(np.tile(test.labels, 3), np.tile(test.probabilities, (3, 1)), times=3)
    assert assessed(test=several).precision == assessed(test=test).precision
    wrong = test.probabilities.copy()
    wrong[5] *= 2
    with pytest.raises(UserError, match="test sample 5"):
        assessed(test=replace(test, probabilities=wrong))


# --------------------------------------------------------------------------------------------------------------- files


def test_rows_are_read_from_a_file_in_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values = rng.random((50, 3)).astype(np.float32)
    monkeypatch.setattr(probability_table, "VALUES", 21)
    for name, save in (("plain", np.savez), ("small", np.savez_compressed)):
        save(tmp_path / f"{name}.npz", other=np.arange(4), rows=values, columns=np.asfortranarray(values))
        for array, kind in (("rows", InFile), ("columns", InMemory)):
            table = InFile.open(tmp_path / f"{name}.npz", array)
            assert isinstance(table, kind)
            assert table.shape == (50, 3)
            blocks = list(table.blocks())
            assert [len(block) for block in blocks] == [7] * 7 + [1]
            assert np.array_equal(np.concatenate(blocks), values.astype(np.float64))
            index = np.array([49, 0, 7, 6, 7])
            assert np.array_equal(rows_at(table, index), values[index].astype(np.float64))


def test_a_file_runs_nothing(tmp_path: Path) -> None:
    file = tmp_path / "evil.npz"
    np.savez(file, pred_probs=np.array([[print]], object), client=np.array([print], object))
    with pytest.raises(UserError, match="float"):
        InFile.open(file, "pred_probs")
    with pytest.raises(UserError, match="allow_pickle"):
        read_arrays(file, ("client",))
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("pred_probs.npy", b"\x93NUMPY\x01\x00")
    with pytest.raises(UserError, match="cannot be read"):
        InFile.open(file, "pred_probs")


def test_adjusted_scores_use_the_pooled_thresholds() -> None:
    plain, found = assessed(), assessed(adjust=True, score="normalized_margin")
    t = plain.joint.thresholds
    shifted = PROBABILITIES - t + t.max()
    shifted /= shifted.sum(1, keepdims=True)
    own = shifted[np.arange(60), LABELS]
    rest = np.where(np.eye(4, dtype=bool)[LABELS], -np.inf, shifted).max(1)
    assert found.label_score == near((own - rest + 1) / 2)


def test_an_array_stored_by_columns_leaves_no_file_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = np.random.default_rng(0).random((5, 3)).astype(np.float32)
    np.savez(tmp_path / "columns.npz", rows=np.asfortranarray(values))
    opened, load = [], np.load

    def noted(*arguments: Any, **named: Any) -> Any:
        opened.append(load(*arguments, **named))
        return opened[-1]

    monkeypatch.setattr(np, "load", noted)
    table = InFile.open(tmp_path / "columns.npz", "rows")
    assert isinstance(table, InMemory)
    assert table.values.dtype == np.float32, "it takes no more memory than in the file"
    assert [archive.zip for archive in opened] == [None]


# -------------------------------------------------------------------------------------------------------------- clients

CLIENTS = len(set(CLIENT.tolist()))
UNLIKE = next(entry["labels"] for entry in vectors()["ours"]["client_prior"] if entry["kappa"] is not None)
"""Labels of which the clients have doubtful ones in very different shares."""


@pytest.mark.parametrize("prior", ["client", "none"])
def test_a_clients_expected_precision_is_of_its_own_labels(prior: Any) -> None:
    test = clean()
    found = assessed(UNLIKE, test=test, prior=prior)
    assert found.clean is not None
    false = np.zeros(len(CUTS))
    for client in range(CLIENTS):
        curve = found.precision_of(slice(client, client + 1))
        ours = found.suspicion_score[client == CLIENT]
        for m, cut in enumerate(CUTS):
            below = int((ours < cut).sum())
            assert curve.below[m] == below
            share = found.clean.below[client, m]
            false[m] += share * (len(ours) - below) / (1 - share) if share < 1 else np.inf
            if below and share < 1:
                right = min(share * (len(ours) - below) / (1 - share), below)
                assert curve.expected[m] == pytest.approx(1 - right / below)
        issues = int(found.is_issue[client == CLIENT].sum())
        share = found.clean.issues[client]
        assert curve.of_issues == pytest.approx(max(1 - share * (len(ours) - issues) / (1 - share) / issues, 0))
    for m in range(1, 100):
        whole = found.precision.expected[m]
        assert whole is None or whole == pytest.approx(max(1 - false[m] / found.precision.below[m], 0))


def test_a_client_whose_labels_are_right_is_told_so() -> None:
    """All clients have issues; the first has them because the model errs, the others since their labels are wrong."""
    right, test = clean(2000, seed=2), clean(2000, seed=1)
    client = np.arange(2000) // 500
    labels = np.where((client > 0) & (np.arange(2000) % 2 == 0), (right.labels + 2) % 4, right.labels)
    samples = LabelledSamples(client, list(range(2000)), labels)
    found = assess(samples, InMemory(right.probabilities), test, Options(prior="none"))
    of_each = [found.precision_of(slice(c, c + 1)).of_issues for c in range(4)]
    assert of_each[0] is not None
    assert of_each[0] < 0.4
    assert min(share or 0 for share in of_each[1:]) > 0.9 > (found.precision.of_issues or 0) - 0.1


def test_rates_of_clients_do_not_depend_on_the_prior() -> None:
    """A client's share of doubtful labels is told also where its scores are left alone."""
    with_prior, without = assessed(UNLIKE, prior="client"), assessed(UNLIKE, prior="none")
    assert with_prior.prior.shift is not None
    assert without.prior.shift is None
    assert np.ptp(without.prior.rates) > 0
    assert without.prior.rates.tolist() == with_prior.prior.rates.tolist()
    assert np.array_equal(without.suspicion_score, without.label_score)


def test_the_weight_of_the_prior_can_be_chosen() -> None:
    shifts = {weight: assessed(UNLIKE, prior_weight=weight).prior.shift for weight in (0.0, 0.25, 0.5)}
    usual = assessed(UNLIKE).prior.shift
    assert shifts[0.0] is None
    assert shifts[0.25] is not None
    assert shifts[0.5] is not None
    assert usual is not None
    assert shifts[0.25].tolist() == usual.tolist()
    assert shifts[0.5] == near(2 * usual)
