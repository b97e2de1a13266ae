"""Random labels and probabilities: what cleanlab finds in the pool is found here, but for its unstable sorting.

cleanlab sorts by numpy's default, which decides between equal values as the processor likes; here it is made stable.
"""

from functools import partial
from typing import Any, get_args

import numpy as np
import pytest
from cleanlab import count, filter, rank

from flnl.audit.joint import latent
from flnl.audit.options import Filter
from flnl.audit.scores import label_scores
from tests.audit.test_confident_learning import estimated, issues

DRAWS = 60


@pytest.fixture(autouse=True)
def stable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every sort of cleanlab's keep the order of equal values."""
    monkeypatch.setattr(np, "argsort", partial(np.argsort, kind="stable"))


def drawn(seed: int) -> tuple[Any, Any]:
    """Labels [N] and probabilities [N, K], where every class is given; every third time with many equal values."""
    rng = np.random.default_rng(seed)
    while True:
        classes, samples = int(rng.integers(2, 6)), int(rng.integers(12, 61))
        probabilities = rng.dirichlet(np.full(classes, rng.choice([0.3, 1.0])), samples)
        if seed % 3 == 0:
            whole = np.floor(probabilities * 8)
            whole[:, 0] += 8 - whole.sum(axis=1)
            probabilities = whole / 8
        labels = np.array([rng.choice(classes, p=row) for row in probabilities])
        if len(np.unique(labels)) == classes:
            return labels, probabilities


@pytest.mark.filterwarnings("ignore:May not flag all label issues")
@pytest.mark.parametrize("seed", range(DRAWS))
def test_estimates_and_issues(seed: int) -> None:
    labels, probabilities = drawn(seed)
    sums, thresholds, joint, scaled = estimated(labels, probabilities)
    assert np.allclose(thresholds, count.get_confident_thresholds(labels, probabilities), rtol=0, atol=1e-9)
    raw, found = (count.compute_confident_joint(labels, probabilities, calibrate=how) for how in (False, True))
    assert joint.tolist() == raw.tolist()
    assert scaled.tolist() == found.tolist()
    ours = latent(scaled, sums.counts)
    theirs = count.estimate_latent(found, labels)
    for one, other in zip((ours.prior, ours.noise, ours.inverse_noise), theirs, strict=True):
        assert np.allclose(one, other, rtol=0, atol=1e-9)
    for name in get_args(Filter):
        theirs = filter.find_label_issues(labels, probabilities, filter_by=name, n_jobs=1)
        assert issues(labels, probabilities, name) == np.flatnonzero(theirs).tolist(), name


@pytest.mark.parametrize("seed", range(0, DRAWS, 10))
@pytest.mark.parametrize("score", ["self_confidence", "normalized_margin"])
def test_scores(seed: int, score: Any) -> None:
    labels, probabilities = drawn(seed)
    theirs = rank.get_label_quality_scores(labels, probabilities, method=score)
    assert np.allclose(label_scores(score, labels, probabilities), theirs, rtol=0, atol=1e-9)


def test_a_class_without_a_confident_sample() -> None:
    """Where the joint has a 0 on its diagonal, matrices are clipped."""
    joint, labels = np.array([[1, 1, 0], [0, 0, 1], [0, 0, 1]]), np.array([0, 0, 1, 2])
    ours = latent(joint, np.bincount(labels))
    theirs = count.estimate_latent(joint, labels)
    for one, other in zip((ours.prior, ours.noise, ours.inverse_noise), theirs, strict=True):
        assert np.allclose(one, other, rtol=0, atol=1e-9)
