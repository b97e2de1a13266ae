"""LID, two-component mixtures and per-sample losses against their definitions, and where a definition is silent."""

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.stats import norm
from torch import Tensor

from flnl.methods.fedcorr.lid import lid, lid_score
from flnl.numerics.losses import sample_losses, weighted_mean
from flnl.numerics.mixture import two_gaussians
from flnl.numerics.scaling import min_max
from tests.toys import vector

Array = NDArray[np.float64]


def estimate(points: Array, i: int, k: int) -> float:
    """FedCorr, Eq. 2, of one point: distances to the k nearest *other* points."""
    others = np.delete(points, i, axis=0)
    nearest = np.sort(np.sqrt(((others - points[i]) ** 2).sum(1)))[:k]
    return float(-1 / np.mean(np.log(nearest / nearest[-1])))


def by_definition(points: Tensor, k: int) -> Array:
    return np.array([estimate(points.numpy(), i, k) for i in range(len(points))])


def as_released(points: Tensor, k: int) -> Array:
    """The authors' conventions: points in float32, distances of those in float64, 1e-6 twice, k whatever n is."""
    cast = points.numpy().astype(np.float32)
    nearest = np.sort(cdist(cast, cast), axis=1)[:, 1 : k + 1]
    with np.errstate(divide="ignore"):
        total = np.log(nearest / (nearest[:, -1:] + 1e-6)).sum(1) + 1e-6
    return np.asarray(-k / total)


def cloud(n: int, d: int, seed: int = 0) -> Tensor:
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def rotation(d: int, seed: int = 0) -> Tensor:
    turned: Tensor = torch.linalg.qr(cloud(d, d, seed))[0]
    return turned


def predictions(n: int, classes: int, sharpness: float, seed: int = 0) -> Tensor:
    """Softmax vectors around the corners of the simplex, nearer to them with more sharpness."""
    rng = torch.Generator().manual_seed(seed)
    towards = torch.eye(classes, dtype=torch.float64)[torch.randint(0, classes, (n,), generator=rng)]
    return torch.softmax(sharpness * towards + torch.randn(n, classes, generator=rng, dtype=torch.float64), dim=1)


# ------------------------------------------------------------------------------------------------------------- LID


def test_lid_by_hand():
    v = vector("fedcorr.lid.hand")
    points = torch.tensor([v.inputs["reference"], *v.inputs["neighbours"]], dtype=torch.float64)
    value = lid(points, v.inputs["k"])[0].item()
    assert value == v.approx("lid")
    assert value == pytest.approx(2 / math.log(2), abs=1e-14)


@pytest.mark.parametrize(("n", "d", "k"), [(30, 3, 5), (30, 10, 20), (7, 2, 2), (200, 4, 20)])
def test_lid_is_the_definition(n: int, d: int, k: int):
    points = cloud(n, d)
    np.testing.assert_allclose(lid(points, k).numpy(), by_definition(points, k), rtol=1e-12)


@pytest.mark.parametrize("n", [3, 10, 20, 21])
def test_lid_uses_all_other_points_where_there_are_fewer_than_k(n: int):
    points = cloud(n, 3)
    np.testing.assert_allclose(lid(points, 20).numpy(), by_definition(points, min(20, n - 1)), rtol=1e-12)


def test_lid_of_more_points_than_are_compared_at_once():
    points, some = cloud(2200, 2), [0, 1905, 1906, 1907, 2199]
    expected = [estimate(points.numpy(), i, 20) for i in some]
    np.testing.assert_allclose(lid(points, 20)[some].numpy(), expected, rtol=1e-12)


def test_lid_does_not_depend_on_the_order_of_the_points():
    points = cloud(40, 3)
    order = torch.randperm(40, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(lid(points[order], 7), lid(points, 7)[order], rtol=1e-12, atol=0)


def test_released_conventions():
    v = vector("fedcorr.lid.points_official")
    points = torch.tensor(v.inputs["X"], dtype=torch.float64)
    assert lid(points, v.inputs["k"], guard=False).tolist() == v.approx("lid")
    assert lid_score(points, v.inputs["k"], guard=False) == v.approx("score")


@pytest.mark.parametrize("n", [10, 21, 60])
def test_released_conventions_keep_k_where_there_are_fewer_points(n: int):
    points = torch.softmax(cloud(n, 4), 1)
    np.testing.assert_allclose(lid(points, 20, guard=False).numpy(), as_released(points, 20), rtol=1e-4)


def test_released_conventions_on_a_saturated_client():
    """The program casts the predictions to float32, but takes distances in float64: tiny ones are not zero."""
    points = predictions(60, 4, 60.0)
    assert (points.float()[:, None] != points.float()).any(-1).sum() > 60  # they do differ as float32
    np.testing.assert_allclose(lid(points, 20, guard=False).numpy(), as_released(points, 20), rtol=1e-4)


def test_lid_is_invariant_to_scale_shift_and_rotation():
    v = vector("fedcorr.lid.invariance")
    points = torch.tensor(v.inputs["X"], dtype=torch.float64)
    k, scale, shift = v.inputs["k"], v.inputs["scale"], torch.tensor(v.inputs["shift"], dtype=torch.float64)
    for changed in (points, scale * points, points + shift, points @ rotation(3), scale * points @ rotation(3) + shift):
        assert lid(changed, k).tolist() == v.approx("lid")


@pytest.mark.parametrize("scale", [1e-100, 1e-20, 1e-14, 1e-12, 1e-6, 1e6, 1e20])
def test_lid_is_invariant_to_any_scale(scale: float):
    points = cloud(30, 4)
    torch.testing.assert_close(lid(points * scale, 5), lid(points, 5), rtol=1e-9, atol=0)


@pytest.mark.parametrize("name", ["fedcorr.lid.duplicates_k2", "fedcorr.lid.duplicates_k3"])
def test_lid_among_duplicates(name: str):
    v = vector(name)
    points = torch.tensor(v.inputs["X"], dtype=torch.float64)
    assert lid(points, v.inputs["k"]).tolist() == v.approx("lid_recommended")
    assert lid(points, v.inputs["k"], guard=False).tolist() == v.approx("lid_official")


def test_lid_of_equal_points_is_zero():
    points = torch.full((12, 3), 1 / 3, dtype=torch.float64)
    assert lid(points, 5).tolist() == [0.0] * 12
    assert lid_score(points, 5) == 0
    assert lid_score(points, 5, guard=False) == 0


def test_lid_among_equal_distances():
    """The estimate diverges, so that there is none; the released code gives a huge number."""
    v = vector("fedcorr.lid.ties")
    simplex = torch.eye(4, dtype=torch.float64) / math.sqrt(2)  # every two points are 1 apart
    assert v.inputs["distances"] == [1.0] * 3
    assert lid(simplex, v.inputs["k"]).isnan().all()
    assert lid(simplex, v.inputs["k"], guard=False).tolist() == [v.approx("lid_official")] * 4


@pytest.mark.parametrize("seed", range(5))
def test_distances_equal_but_for_rounding_are_equal(seed: int):
    """A turned simplex is a simplex."""
    simplex = torch.eye(6, dtype=torch.float64) @ rotation(6, seed) * 0.7 + 0.1
    assert lid(simplex, 5).isnan().all()
    assert lid_score(simplex, 5) == 0


def test_score_is_the_mean_over_samples():
    points = cloud(25, 3)
    assert lid_score(points, 4) == pytest.approx(by_definition(points, 4).mean(), rel=1e-12)


def test_score_leaves_out_samples_without_an_estimate():
    """Three points far away, each as far from both others, among ordinary ones: they have no estimate for k = 2."""
    ordinary = cloud(10, 3)
    tied = 1000 + torch.eye(3, dtype=torch.float64)
    values = lid(torch.cat([ordinary, tied]), 2)
    assert values[:10].isfinite().all()
    assert values[10:].isnan().all()
    assert lid_score(torch.cat([ordinary, tied]), 2) == pytest.approx(by_definition(ordinary, 2).mean(), rel=1e-12)


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("guard", [True, False])
def test_score_of_too_few_samples_is_finite(n: int, guard: bool):
    score = lid_score(cloud(n, 3), 20, guard=guard)
    assert math.isfinite(score)
    if guard or n < 2:
        assert score == 0  # one neighbour is always as far as itself: there is no estimate


@pytest.mark.parametrize("sharpness", [5, 15, 25, 30, 31, 32, 33, 35, 40, 60, 300, 2000])
@pytest.mark.parametrize("n", [5, 60])
def test_a_saturated_client_scores_small_and_never_below_zero(sharpness: float, n: int):
    """The cumulative score of a client never falls, whatever its network is sure of."""
    values = lid(predictions(n, 4, sharpness), 20)
    assert (values[~values.isnan()] >= 0).all()
    score = lid_score(predictions(n, 4, sharpness), 20)
    assert math.isfinite(score)
    assert score >= 0
    if n == 60:  # enough for several samples a class
        assert score < 5


def test_a_client_with_one_confident_sample_a_class_has_no_huge_score():
    """All its predictions are equally far apart, but for what rounding and the tails leave."""
    noise = cloud(10, 10) / 2
    points = torch.softmax(40 * torch.eye(10, dtype=torch.float64) + noise, dim=1)
    assert 0 <= lid_score(points, 20) < 1e6


@pytest.mark.parametrize("m", [2, 5])
def test_lid_of_a_ball_is_its_dimension(m: int):
    """In an m-ball the estimate is m k/(k-2) on average, wherever the ball is embedded."""
    rng = torch.Generator().manual_seed(m)
    direction = torch.randn(4000, m, generator=rng, dtype=torch.float64)
    radius = torch.rand(4000, 1, generator=rng, dtype=torch.float64) ** (1 / m)
    ball = direction / direction.norm(dim=1, keepdim=True) * radius
    inside = (radius[:, 0] < 0.5).nonzero()[:, 0]  # far from the border, beyond which nobody lives
    k = 20
    values = lid(torch.nn.functional.pad(ball, [0, 9 - m]) @ rotation(9), k)[inside]
    assert values.mean().item() == pytest.approx(m * k / (k - 2), rel=0.1)


# -------------------------------------------------------------------------------------------------------- mixtures


def two_clusters(seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return rng.permutation(np.concatenate([rng.normal(1, 0.2, 60), rng.normal(4, 0.6, 40)]))


def test_mixture_of_clients():
    v = vector("fedcorr.gmm.clients")
    found = two_gaussians(np.array(v.inputs["cumulative_lid"]))
    assert np.flatnonzero(found.upper).tolist() == v.expected["noisy_clients"]
    assert np.flatnonzero(~found.upper).tolist() == v.expected["clean_clients"]
    assert list(found.means) == v.approx("means_sorted")


def test_upper_is_the_component_of_the_larger_mean():
    """Whatever EM calls it, however large it is and wherever it stands in the input."""
    values = np.array([1.0, 1.1, 0.9, 1.05, 0.95, 8.0, 8.2, 7.9])
    for sample, above in ((values, values > 5), (values[::-1], values[::-1] > 5), (9 - values, values < 5)):
        found = two_gaussians(sample)
        assert found.means[0] < found.means[1]
        assert (found.upper == above).all()
        assert found.split
        assert found.weights[1] == pytest.approx(above.mean(), abs=1e-3)


def test_mixture_is_a_stationary_point_of_the_likelihood():
    """The posterior follows from the parameters by Bayes' rule, and the parameters from the posterior by the M step."""
    values = two_clusters()
    found = two_gaussians(values)
    densities = [
        w * norm.pdf(values, m, math.sqrt(v))
        for w, m, v in zip(found.weights, found.means, found.variances, strict=True)
    ]
    posterior = densities[1] / (densities[0] + densities[1])
    np.testing.assert_allclose(found.posterior, posterior, atol=1e-9)
    assert (found.upper == (posterior > 0.5)).all()
    for share, weight, mean, variance in zip(
        (1 - posterior, posterior), found.weights, found.means, found.variances, strict=True
    ):
        centre = (share * values).sum() / share.sum()
        assert weight == pytest.approx(share.mean(), rel=1e-2)
        assert mean == pytest.approx(centre, rel=1e-2)
        assert variance == pytest.approx((share * (values - centre) ** 2).sum() / share.sum(), rel=1e-2)


def overlapping(count: int) -> Iterator[Array]:
    """A narrow and a wide component about one place. Where EM starts from a cut, some of these end the other way."""
    rng = np.random.default_rng(0)
    for _ in range(count):
        n = int(rng.integers(8, 60))
        narrow = int(rng.integers(2, n - 1))
        values = rng.normal(0, rng.choice([0.05, 0.3, 1]), narrow)
        values = np.append(values, rng.normal(rng.choice([0, 0.2, 0.5, 1]), rng.choice([1, 3, 6]), n - narrow))
        yield np.exp(values / 3) if rng.random() < 0.5 else values


def test_components_are_in_order_however_they_were_found():
    for values in overlapping(130):
        found = two_gaussians(values)
        assert found.means[0] <= found.means[1]
        low, high = (
            w * norm.pdf(values, m, math.sqrt(v))
            for w, m, v in zip(found.weights, found.means, found.variances, strict=True)
        )
        np.testing.assert_allclose(found.posterior, high / (low + high), atol=1e-6)


@pytest.mark.parametrize("values", [[], [3.0], [2.0] * 9, [0.0] * 4, [1e6] * 5, [1.0, 1.0 + 1e-13, 1.0]])
def test_one_component_has_nothing_upper(values: list[float]):
    found = two_gaussians(np.array(values))
    assert found.upper.tolist() == [False] * len(values)
    assert found.posterior.tolist() == [0.0] * len(values)
    assert not found.split
    if values:
        assert found.means[0] == pytest.approx(values[0])


def test_two_values_are_two_components():
    found = two_gaussians(np.array([9.0, 1.0]))
    assert found.upper.tolist() == [True, False]
    assert found.means == pytest.approx((1.0, 9.0), abs=1e-3)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_values_that_are_not_finite_count_as_the_largest(bad: float):
    values = np.array([0.1, 0.2, bad, 0.15, 5.0, 5.1, bad, 0.12, 4.9])
    found = two_gaussians(values)
    assert (found.upper == ((values > 1) | ~np.isfinite(values))).all()
    assert np.isfinite(found.posterior).all()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_finite_value_has_nothing_upper(bad: float):
    assert not two_gaussians(np.full(5, bad)).upper.any()
    assert not two_gaussians(np.array([bad, 1.0])).upper.any()


def test_an_outlier_is_a_component_of_its_own():
    values = np.append(two_clusters()[:50], 1e6)
    found = two_gaussians(values)
    assert np.flatnonzero(found.upper).tolist() == [50]
    assert found.means[1] == pytest.approx(1e6)


def test_a_mixture_does_not_depend_on_the_order_of_the_values():
    values = two_clusters()
    order = np.random.default_rng(1).permutation(len(values))
    assert (two_gaussians(values[order]).upper == two_gaussians(values).upper[order]).all()


@pytest.mark.parametrize("scale", [1e-3, 0.1, 1.0, 1e4])
def test_a_mixture_follows_its_values(scale: float):
    """Losses of a client that fits its labels well split as those of one that does not."""
    values = two_clusters()
    found, at_one = two_gaussians(2 + scale * values), two_gaussians(values)
    assert (found.upper == at_one.upper).all()
    assert found.means == pytest.approx(tuple(2 + scale * m for m in at_one.means), rel=1e-3)
    assert found.variances == pytest.approx(tuple(scale**2 * v for v in at_one.variances), rel=1e-2)


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_a_mixture_of_values_around_zero_is_found_at_any_scale(scale: float):
    """Values are alike relative to their size: of a spread of 1e-11, too, if they are no larger."""
    values = two_clusters()
    assert (two_gaussians(scale * values).upper == two_gaussians(values).upper).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_min_max_of_values_that_rounding_tells_apart_is_zero(sign: int):
    """Relative to their size, whatever their sign."""
    assert min_max(sign * np.array([3.0, 3.0 + 1e-12, 3.0])).tolist() == [0, 0, 0]
    assert min_max(sign * np.array([3.0, 3.0 + 1e-6])).tolist() == ([0, 1] if sign > 0 else [1, 0])


def losses(case: int) -> Array:
    """As on a noisy client: most near zero with a long tail, the others around three."""
    rng = np.random.default_rng(case)
    n = int(rng.choice([20, 60, 150, 500]))
    wrong = int(n * rng.uniform(0, 1))
    few = rng.gamma(0.5, rng.uniform(0.05, 1.5), n - wrong)
    return np.concatenate([few, rng.normal(3, 1.0, wrong).clip(0)])


@pytest.mark.parametrize("case", range(12))
def test_a_split_is_a_property_of_the_values(case: int):
    """The fit has several optima here; which one is found depends on nothing that is random."""
    values = losses(case)
    found = two_gaussians(values)
    np.random.seed(case)  # noqa: NPY002
    again = two_gaussians(values[::-1])
    assert (again.upper[::-1] == found.upper).all()
    assert again.means == pytest.approx(found.means, rel=1e-6)


# ---------------------------------------------------------------------------------------------------------- losses


def test_losses_of_logits_and_of_softmax():
    v = vector("fedcorr.loss.double_softmax")
    logits, labels = torch.tensor(v.inputs["logits"], dtype=torch.float64), torch.tensor(v.inputs["labels"])
    assert sample_losses(logits, labels).tolist() == v.approx("ce_logits")
    assert sample_losses(logits, labels, of_softmax=True).tolist() == v.approx("ce_of_softmax")


@pytest.mark.parametrize("shape", [(5,), (3, 5), (2, 3, 5)])
def test_a_weighted_mean_is_over_samples(shape: tuple[int, ...]):
    """As numpy's average over the last dimension, of one client and of stacks; 0 where all weights are 0."""
    rng = np.random.default_rng(1)
    values, weight = rng.random(shape), rng.random(shape)
    found = weighted_mean(torch.from_numpy(values), torch.from_numpy(weight)).numpy()
    assert found == pytest.approx(np.average(values, axis=-1, weights=weight))
    assert weighted_mean(torch.from_numpy(values), None).numpy() == pytest.approx(values.mean(-1))
    assert not weighted_mean(torch.from_numpy(values), torch.zeros(shape)).any()


def test_range_of_losses_of_softmax():
    v = vector("fedcorr.loss.double_softmax_range")
    for i, classes in enumerate(v.inputs["C"]):
        sure = 1e3 * torch.eye(classes, dtype=torch.float64)[:2]
        right = sample_losses(sure, torch.tensor([0, 1]), of_softmax=True)
        wrong = sample_losses(sure, torch.tensor([1, 0]), of_softmax=True)
        assert right.tolist() == v.near([v.expected["min"][i]] * 2)
        assert wrong.tolist() == v.near([v.expected["max"][i]] * 2)
        assert (wrong - right).tolist() == v.near([v.expected["width"][i]] * 2)
        assert right[0].item() == pytest.approx(math.log(math.e + classes - 1) - 1, abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_losses_are_float64_and_finite(dtype: torch.dtype):
    """Neighbours in rank may differ far below what float32 can tell; a network that is sure and wrong has a loss."""
    logits = torch.tensor([[1e4, 0.0, -1e4], [0.0, 0.0, 0.0]]).to(dtype)
    values = sample_losses(logits, torch.tensor([2, 1]))
    assert values.dtype == torch.float64
    assert values[0].item() == pytest.approx(2 * logits[0, 0].item(), rel=1e-12)
    assert values[1].item() == pytest.approx(math.log(3), rel=1e-12)
