"""The matrices that stand for CIFAR-10N's labels where there are no CIFAR-10 images."""

import numpy as np
import pytest

from flnl.config import compose

WRONG = {"aggregate": 0.0903, "random1": 0.1723, "worst": 0.4021}
"""Wei et al. (2022), Table 1: noise rates of CIFAR-10N."""


@pytest.mark.parametrize("source", WRONG)
def test_a_matrix_has_the_published_rate_and_is_built(source: str) -> None:
    cfg = compose.load([f"noise=cifar10n_{source}"])
    T = np.array(cfg.noise.matrix)
    assert T.shape == (10, 10)
    np.testing.assert_allclose(T.sum(axis=1), 1, atol=1e-9)
    assert 1 - np.diag(T).mean() == pytest.approx(WRONG[source], abs=1e-3)  # classes are equally large
    matrix = compose.build(cfg.noise)
    np.testing.assert_allclose(matrix.transition(10), T, atol=1e-9)
    human = compose.build(compose.load(["dataset=cifar10", "noise=human", f"noise.source={source}"]).noise)
    assert matrix.expected == pytest.approx(human.expected, abs=1e-9)  # both were counted in the same file
    assert (matrix.nominal, human.nominal) == (None, None)


def test_people_confuse_cats_with_dogs_and_trucks_with_cars() -> None:
    """Rows are the true class: transposed, these would be others."""
    T = np.array(compose.load(["noise=cifar10n_worst"]).noise.matrix)
    cat, dog, automobile, truck = 3, 5, 1, 9
    assert T[cat].argsort()[-2] == dog
    assert T[truck].argsort()[-2] == automobile
    assert T[truck, automobile] > T[automobile, truck]
