"""FedDiv's filter and its choice of samples, against the formulas written out and against brute force."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import norm
from torch import Tensor

from flnl.core.payload import size_in_bytes
from flnl.methods.feddiv.consistency import Selection, debiased, next_bias, no_bias
from flnl.methods.feddiv.loss import divergence_from_uniform
from flnl.methods.feddiv.noise_filter import (
    Filter,
    aggregate,
    blobs,
    clean_flags,
    em_step,
    filter_losses,
    filter_of,
    first_fit,
    fit,
    normalised,
    posterior_of_clean,
)
from flnl.numerics.mixture import two_gaussians
from flnl.run.checkpoint import decode, encode
from tests.toys import vector

Array = NDArray[np.float64]
START = Filter((0.2, 0.7), (0.02, 0.03), (0.6, 0.4))


def drawn(seed: int = 0, right: int = 120, wrong: int = 60) -> Array:
    rng = np.random.default_rng(seed)
    return rng.permutation(np.concatenate([rng.gamma(2, 0.1, right), rng.normal(1.5, 0.3, wrong)]))


def filters(v: Any) -> list[Filter]:
    rows = zip(v.inputs["mu"], v.inputs["var"], v.inputs["pi"], strict=True)
    return [Filter(tuple(m), tuple(s), tuple(p)) for m, s, p in rows]


def densities(f: Filter, x: Any) -> Array:
    parts = zip(f.share, f.mean, f.variance, strict=True)
    return np.array([p * norm.pdf(x, m, math.sqrt(v)) for p, m, v in parts])


def likelihood(f: Filter, x: Array) -> float:
    return float(np.log(densities(f, x).sum(0)).mean())


# ---------------------------------------------------------------------------------------------------------- losses


def test_losses_are_scaled_to_the_unit_interval():
    v = vector("feddiv.minmax_loss")
    assert normalised(np.array(v.inputs["losses"])).tolist() == v.approx("scaled")
    assert normalised(np.array(v.inputs["losses"]), "none").tolist() == v.inputs["losses"]


@pytest.mark.parametrize("values", [[], [2.0], [3.0] * 5])
def test_losses_all_alike_scale_to_zero(values: list[float]):
    assert normalised(np.array(values)).tolist() == [0.0] * len(values)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_counts_as_the_largest(bad: float):
    assert normalised(np.array([1.0, bad, 3.0])).tolist() == [0.0, 1.0, 1.0]
    assert normalised(np.array([2.0, 2.0, bad])).tolist() == [0.0, 0.0, 1.0]
    assert normalised(np.array([bad] * 3)).tolist() == [1.0] * 3


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("norm", ["minmax", "none"])
def test_a_sample_whose_loss_overflows_is_never_clean(bad: float, norm: Any):
    """Neither beside samples that are all alike, nor if all of the client's are so."""
    by = Filter((0.1, 0.9), (0.01, 0.01), (0.5, 0.5))
    for sizes in ([5.0, 5.0, bad], [bad] * 3):
        logits = torch.tensor([[size, 0.0] for size in sizes]).double()
        flags = clean_flags(filter_losses(logits, torch.tensor([0, 0, 0]), norm=norm), by)
        assert flags.tolist() == [math.isfinite(size) for size in sizes]


def test_losses_of_a_filter_follow_their_options():
    logits = torch.tensor([[3.0, 0.0], [0.0, 1.0], [0.0, 0.0]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1])
    raw = [math.log(1 + math.exp(-3)), math.log(1 + math.e), math.log(2)]
    np.testing.assert_allclose(filter_losses(logits, labels, norm="none"), raw, rtol=1e-12)
    expected = (np.array(raw) - raw[0]) / (raw[1] - raw[0])
    np.testing.assert_allclose(filter_losses(logits, labels), expected, atol=1e-12)
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(1, keepdims=True)
    twice = [-p[i, y] + math.log(np.exp(p[i]).sum()) for i, y in enumerate(labels.tolist())]
    found = filter_losses(logits, labels, loss="ce_of_softmax", norm="none")
    np.testing.assert_allclose(found, twice, rtol=1e-12)


# -------------------------------------------------------------------------------------------------------------- EM


def em_by_loops(x: Array, f: Filter) -> Filter:
    """Algorithm 2, sample by sample."""
    belongs = np.array([densities(f, value) / densities(f, value).sum() for value in x])
    rows = []
    for g in range(2):
        mass = sum(b[g] for b in belongs)
        mean = sum(b[g] * value for b, value in zip(belongs, x, strict=True)) / mass
        variance = sum(b[g] * (value - mean) ** 2 for b, value in zip(belongs, x, strict=True)) / mass
        rows.append((mean, variance, mass / len(x)))
    (m1, v1, s1), (m2, v2, s2) = rows
    return Filter((m1, m2), (v1, v2), (s1, s2))


def close(a: Filter, b: Filter, tolerance: float = 1e-9) -> None:
    for part in ("mean", "variance", "share"):
        assert getattr(a, part) == pytest.approx(getattr(b, part), rel=tolerance, abs=tolerance)


def test_one_step_of_em():
    v = vector("feddiv.filter.em_step")
    start = Filter(tuple(v.inputs["mu"]), tuple(v.inputs["var"]), tuple(v.inputs["pi"]))
    found = em_step(np.array(v.inputs["losses"]), start)
    assert list(found.mean) == v.approx("mu")
    assert list(found.variance) == v.approx("var")
    assert list(found.share) == v.approx("pi")
    deviations = replace(start, variance=(math.sqrt(start.variance[0]), math.sqrt(start.variance[1])))
    assert list(em_step(np.array(v.inputs["losses"]), deviations).mean) != v.approx("mu")  # sigma is a variance


@pytest.mark.parametrize("seed", range(3))
def test_steps_of_em_are_those_of_algorithm_2(seed: int):
    x = drawn(seed)
    found = expected = START
    for _ in range(3):
        found, expected = em_step(x, found), em_by_loops(x, expected)
        close(found, expected)


@pytest.mark.parametrize("seed", range(6))
def test_a_fit_stands_still_and_no_step_lowers_the_likelihood(seed: int):
    x = normalised(drawn(seed))
    found, before = START, -np.inf
    for _ in range(30):
        assert likelihood(found, x) >= before - 1e-12
        before, found = likelihood(found, x), em_step(x, found)
    fitted = fit(x, START)
    close(fitted, em_step(x, fitted), 1e-2)
    assert likelihood(fitted, x) >= before - 1e-5
    assert likelihood(fitted, x) >= likelihood(START, x)


def test_a_fit_goes_on_until_it_stands_still_or_is_stopped():
    x = normalised(drawn())
    assert fit(x, START, iterations=0) == START
    close(fit(x, START, iterations=2), em_step(x, em_step(x, START)))
    assert fit(x, START, tolerance=1e6, iterations=50) == em_step(x, START)


def test_a_fit_starts_from_what_it_is_given():
    """Symmetric data have one optimum for each side: the start decides."""
    x = np.array([0.0, 0.01, 0.02, 0.5, 0.51, 0.49, 1.0, 0.99, 0.98])
    left = fit(x, Filter((0.0, 0.7), (0.001, 0.1), (0.4, 0.6)))
    right = fit(x, Filter((0.3, 1.0), (0.1, 0.001), (0.6, 0.4)))
    assert left.share[0] == pytest.approx(1 / 3, abs=1e-3)
    assert right.share[1] == pytest.approx(1 / 3, abs=1e-3)


def test_the_clean_component_comes_first_unless_the_program_is_followed():
    x = normalised(drawn())
    swapped = Filter(START.mean[::-1], START.variance[::-1], START.share[::-1])
    assert swapped.clean == 1
    assert START.clean == 0
    close(swapped.ordered(), START)
    close(fit(x, swapped), fit(x, START))
    as_released = fit(x, swapped, sort=False)
    assert as_released.mean[0] > as_released.mean[1]
    close(as_released.ordered(), fit(x, START))


@pytest.mark.parametrize("values", [[], [0.4], [0.4] * 7, [0.0] * 3])
def test_losses_that_tell_nothing_leave_the_filter(values: list[float]):
    assert fit(np.array(values), START) == START
    assert first_fit(np.array(values)) is None


def test_a_component_that_nobody_belongs_to_stays():
    far = Filter((0.1, 5000.0), (0.01, 0.01), (0.5, 0.5))
    x = np.array([0.1, 0.2, 0.15, 0.12])
    found = fit(x, far)
    assert found.mean[1] == 5000
    assert found.variance[1] == 0.01
    assert 0 < found.share[1] < 1e-6
    assert found.mean[0] == pytest.approx(x.mean())
    back = fit(np.append(x, [5000.0, 5000.2]), found)  # and can come back to life
    assert back.share[1] == pytest.approx(2 / 6)


def test_a_variance_has_a_floor_that_follows_the_losses():
    for scale in (1.0, 1e-4, 1e4):
        x = scale * np.array([0.0] * 8 + [1.0, 2.0, 1.5, 1.2])
        start = Filter((0.0, scale), (scale**2 * 0.1,) * 2, (0.5, 0.5))
        assert fit(x, start).variance[0] == pytest.approx(1e-6 * x.var())


@given(
    st.lists(st.floats(0, 50, allow_subnormal=False), min_size=0, max_size=40),
    st.tuples(st.floats(-1, 3), st.floats(-1, 3), st.floats(1e-4, 2), st.floats(1e-4, 2), st.floats(0.01, 0.99)),
)
@settings(max_examples=60, deadline=None)
def test_a_fit_is_a_filter_whatever_the_losses(losses: list[float], begin: tuple[float, ...]):
    low, high, narrow, wide, share = begin
    x = np.array(losses)
    found = fit(x, Filter((low, high), (narrow, wide), (share, 1 - share)), iterations=50)
    assert np.isfinite([*found.mean, *found.variance, *found.share]).all()
    assert found.mean[0] <= found.mean[1]
    assert min(found.variance) > 0
    assert sum(found.share) == pytest.approx(1)
    p = posterior_of_clean(x, found)
    assert ((p >= 0) & (p <= 1)).all()


@pytest.mark.parametrize("seed", range(4))
def test_a_first_fit_is_that_of_the_mixture(seed: int):
    x = drawn(seed)
    found, mixture = first_fit(x), two_gaussians(x)
    assert found is not None
    assert found.mean == pytest.approx(mixture.means, rel=0.05)
    assert likelihood(found, x) >= likelihood(Filter(mixture.means, mixture.variances, mixture.weights), x) - 1e-9
    assert first_fit(x[::-1]) is not None
    close(first_fit(x[::-1]) or START, found, 1e-6)


def test_a_random_filter_is_a_function_of_its_stream():
    found = blobs(np.random.default_rng(3))
    assert found == blobs(np.random.default_rng(3)) != blobs(np.random.default_rng(4))
    assert found.mean[0] < found.mean[1]
    assert sum(found.share) == pytest.approx(1)


def test_a_filter_is_six_numbers_and_can_be_stored():
    found = fit(normalised(drawn()), START)
    assert size_in_bytes(found) == 48
    assert decode(encode(found)) == found
    assert all(type(x) is float for x in (*found.mean, *found.variance, *found.share))


# ------------------------------------------------------------------------------------------------------------- use


def test_posterior_is_bayes_rule():
    x = np.linspace(-0.5, 2, 40)
    clean, noisy = densities(START, x)
    np.testing.assert_allclose(posterior_of_clean(x, START), clean / (clean + noisy), rtol=1e-9)
    swapped = Filter(START.mean[::-1], START.variance[::-1], START.share[::-1])
    np.testing.assert_allclose(posterior_of_clean(x, swapped), clean / (clean + noisy), rtol=1e-9)


def test_the_posterior_is_not_monotone_but_the_flag_is_guarded():
    v = vector("feddiv.filter.nonmonotone")
    x = np.array(v.inputs["losses"])
    by = Filter(tuple(v.inputs["mu"]), tuple(v.inputs["var"]), tuple(v.inputs["pi"]))
    assert posterior_of_clean(x, by).tolist() == v.approx("p_clean")
    assert clean_flags(x, by).tolist() == [True, True, True, False]
    assert clean_flags(x, by, guard=False).tolist() == [False, True, True, False]


def test_the_flag_is_monotone_where_the_clean_component_is_the_wider_one():
    by = Filter((1.0, 3.0), (4.0, 0.25), (0.5, 0.5))  # far above both means, the wide clean component is the likelier
    x = np.linspace(-20, 20, 401)
    assert not np.all(np.diff(clean_flags(x, by, guard=False).astype(int)) <= 0)
    assert not np.all(np.diff(clean_flags(x, by).astype(int)) <= 0)
    flags = clean_flags(x, by, guard_above=True)
    assert np.all(np.diff(flags.astype(int)) <= 0)
    between = (x > 1) & (x < 3)
    np.testing.assert_array_equal(flags[between], posterior_of_clean(x[between], by) >= 0.5)
    assert clean_flags(x, by, threshold=0.0, guard_above=True).all()
    swapped = Filter((3.0, 1.0), (0.25, 4.0), (0.5, 0.5))
    assert clean_flags(x, swapped, guard_above=True).tolist() == flags.tolist()
    assert not clean_flags(np.array([math.inf, math.nan]), by, guard_above=True).any()


def test_the_threshold_is_met_by_equality():
    even = Filter((0.0, 1.0), (0.1, 0.1), (0.5, 0.5))
    assert clean_flags(np.array([0.5]), even).tolist() == [True]
    assert clean_flags(np.array([0.5]), even, threshold=0.6).tolist() == [False]


def test_a_posterior_exists_far_from_both_components():
    x = np.array([1e3, -1e3, 1e8, math.inf, math.nan])
    p = posterior_of_clean(x, Filter((0.1, 0.9), (0.01, 0.01), (0.5, 0.5)))
    assert p.tolist() == [0, 1, 0, 0, 0]
    assert clean_flags(x, START).tolist()[3:] == [False, False]


# ------------------------------------------------------------------------------------------------------ aggregation


def test_the_federated_filter():
    v = vector("feddiv.filter.aggregate")
    some, n = filters(v), v.inputs["n"]
    paper = aggregate(some, n)
    for part, name in (("mean", "mu"), ("variance", "var"), ("share", "pi")):
        assert list(getattr(paper, part)) == v.near(v.expected["paper"][name])
        found = getattr(aggregate(some, n, variance="moment_matching"), part)
        assert list(found) == v.near(v.expected["moment_matching"][name])
    released = aggregate(some, n, variance="squared_share")
    assert list(released.variance) == v.approx("code_var")
    assert list(paper.variance) != v.approx("code_var")
    assert (released.mean, released.share) == (paper.mean, paper.share)


def test_squared_shares_shrink_the_variance_with_the_number_of_clients():
    v = vector("feddiv.filter.var_shrink")
    one = Filter((0.2, 0.8), (v.inputs["client_var"],) * 2, (0.5, 0.5))
    for i, clients in enumerate(v.inputs["K"]):
        many, n = [one] * clients, [7] * clients
        assert aggregate(many, n, variance="squared_share").variance[0] == v.near(v.expected["code_var"][i])
        assert aggregate(many, n).variance[0] == v.near(v.expected["paper_var"][i])


def test_clients_sort_before_they_are_averaged():
    v = vector("feddiv.filter.ordering")
    unsorted = [Filter(tuple(m), (0.01, 0.01), (0.5, 0.5)) for m in v.inputs["mu"]]
    assert list(aggregate(unsorted, v.inputs["n"]).mean) == v.approx("naive")
    assert list(aggregate([f.ordered() for f in unsorted], v.inputs["n"]).mean) == v.approx("sorted")


def test_moment_matching_has_the_moments_of_the_pooled_mixture():
    """Both mixtures, the pooled and the aggregated, have one mean and one variance."""
    v = vector("feddiv.filter.aggregate")
    some, n = filters(v), np.array(v.inputs["n"]) / sum(v.inputs["n"])
    found = aggregate(some, v.inputs["n"], variance="moment_matching")

    def moments(parts: list[tuple[float, Filter]]) -> tuple[float, float]:
        rows = [(w * p, m, s) for w, f in parts for p, m, s in zip(f.share, f.mean, f.variance, strict=True)]
        mean = sum(w * m for w, m, _ in rows)
        return mean, sum(w * (s + m**2) for w, m, s in rows) - mean**2

    assert moments([(1.0, found)]) == pytest.approx(moments(list(zip(n, some, strict=True))))


@pytest.mark.parametrize("variance", ["linear", "squared_share", "moment_matching"])
def test_one_client_is_its_own_federation(variance: Any):
    close(aggregate([START], [5], variance=variance), START)
    close(aggregate([START, replace(START, mean=(9.0, 10.0))], [5, 0], variance=variance), START)


def test_moment_matching_keeps_the_clean_component_first():
    """Means weighted by shares may cross."""
    some = [Filter((10.0, 20.0), (1.0, 1.0), (0.99, 0.01)), Filter((0.0, 1.0), (1.0, 1.0), (0.01, 0.99))]
    found = aggregate(some, [1, 1], variance="moment_matching")
    assert found.mean[0] < found.mean[1]
    assert found.mean[0] == pytest.approx((20 * 0.01 + 0.99) / 1)
    bare = [replace(START, share=(0.0, 1.0))] * 2
    assert np.isfinite(aggregate(bare, [1, 2], variance="moment_matching").mean).all()


def test_nothing_to_average_is_refused():
    with pytest.raises(ValueError, match="one client with samples"):
        aggregate([], [])
    with pytest.raises(ValueError, match="one client with samples"):
        aggregate([START], [0])


def test_whose_filter_is_used():
    v, shared = vector("feddiv.variants"), vector("feddiv.filter.aggregate")
    cached = dict(zip(v.inputs["cached"], filters(shared), strict=True))
    counts = dict(enumerate(shared.inputs["n"]))
    for reach, name in (("federated", "full_mu"), ("degraded", "degraded_mu"), ("local", "local_mu_client0")):
        found = filter_of(v.inputs["client"], cached, counts, v.inputs["selected"], reach=reach)  # type: ignore[arg-type]
        assert list(found.mean) == v.approx(name)
    assert filter_of(0, cached, counts, (), variance="squared_share").variance == pytest.approx(
        tuple(shared.expected["code_var"])
    )


# ------------------------------------------------------------------------------------------- predictive consistency


def test_debiased_logits():
    v = vector("feddiv.pcs.debias")
    logits, bias = (torch.tensor(v.inputs[name], dtype=torch.float64) for name in ("logits", "p_hat"))
    found = debiased(logits[None], bias, v.inputs["xi"])
    assert found[0].tolist() == v.approx("F")
    assert logits.argmax().item() == v.expected["label_before"]
    assert found.argmax().item() == v.expected["label_after"]
    assert torch.equal(debiased(logits[None], bias, 0.0), logits[None])
    assert debiased(logits[None], torch.tensor([1.0, 0.0, 0.0]).double()).isfinite().all()


def test_bias_is_a_running_mean_of_predictions():
    v = vector("feddiv.pcs.phat")
    bias = torch.tensor(v.inputs["p_hat"], dtype=torch.float64)
    logits = torch.tensor([v.inputs["mean_pred"]], dtype=torch.float64).log()
    assert next_bias(bias, logits, v.inputs["m"]).tolist() == v.approx("p_hat")
    assert next_bias(no_bias(3), logits.repeat(4, 1), v.inputs["m"]).tolist() == v.approx("p_hat")


def test_bias_over_many_samples():
    logits = torch.randn(9, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    bias = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
    rows = np.exp(logits.numpy())
    mean = (rows / rows.sum(1, keepdims=True)).mean(0)
    np.testing.assert_allclose(next_bias(bias, logits).numpy(), 0.2 * bias.numpy() + 0.8 * mean, rtol=1e-12)
    shifted = np.exp(2 * (logits.numpy() - 0.5 * np.log(bias.numpy())))
    sure = (shifted / shifted.sum(1, keepdims=True)).max(1) > 0.85
    assert 0 < sure.sum() < 9
    twice = np.exp(2 * logits.numpy())
    mean = (twice / twice.sum(1, keepdims=True))[sure].mean(0)
    found = next_bias(bias, 2 * logits, samples="confident", xi=1.0)
    np.testing.assert_allclose(found.numpy(), 0.2 * bias.numpy() + 0.8 * mean, rtol=1e-12)
    assert torch.equal(next_bias(bias, 0 * logits, samples="confident", xi=0.0), bias)


def one_hots(labels: list[int], confidence: float = 0.9) -> Tensor:
    rows = torch.full((len(labels), 3), (1 - confidence) / 2, dtype=torch.float64)
    rows[torch.arange(len(labels)), torch.tensor(labels)] = confidence
    return rows


CLEAN = torch.tensor([True, True, True, False, False, False])
GIVEN = torch.tensor([0, 1, 2, 0, 0, 0])
GLOBAL = one_hots([0, 1, 1, 1, 2, 2])
GLOBAL[5] = torch.tensor([0.2, 0.2, 0.6])
LOCAL = torch.tensor([0, 2, 1, 1, 1, 2])


def test_samples_that_both_models_agree_on():
    """Clean: 0 agrees, 1 does not, 2 agrees on another label than given. Noisy: 3 agrees, 4 does not, 5 is unsure."""
    found = Selection()(CLEAN, GIVEN, GLOBAL, LOCAL)
    assert found.keep.tolist() == [True, False, True, True, False, False]
    assert found.labels.tolist() == [0, 1, 2, 1, 2, 0]
    assert found.noise_level == 0.5
    assert found.noisy


@pytest.mark.parametrize(
    ("rule", "keep"),
    [
        (Selection(pcs="off"), [True, True, True, True, True, False]),
        (Selection(relabel=False), [True, False, True, False, False, False]),
        (Selection(relabel=False, pcs="off"), [True, True, True, False, False, False]),
        (Selection(clean_agrees=True), [True, False, False, True, False, False]),
        (Selection(zeta=0.6), [True, False, True, True, False, True]),
        (Selection(zeta=0.95), [True, False, True, False, False, False]),
        (Selection(relabel_min_delta=0.6), [True, False, True, False, False, False]),
        (Selection(relabel_min_delta=0.5), [True, False, True, True, False, False]),
        (Selection(pcs="cached", pcs_start=5), [True, True, True, True, True, False]),
        (Selection(delta=0.6), [True] * 6),
        (Selection(delta=0.5), [True, False, True, True, False, False]),
        (Selection(delta=0.5, strict_delta=True), [True] * 6),
    ],
)
def test_rules_of_selection(rule: Selection, keep: list[bool]):
    found = rule(CLEAN, GIVEN, GLOBAL, LOCAL, visit=4)
    assert found.keep.tolist() == keep
    if all(keep):
        assert not found.noisy
        assert torch.equal(found.labels, GIVEN)


def test_agreement_begins_with_a_visit_and_needs_labels():
    rule = Selection(pcs="cached", pcs_start=5)
    assert rule(CLEAN, GIVEN, GLOBAL, LOCAL, visit=5).keep.sum() == 3
    assert rule(CLEAN, GIVEN, GLOBAL, None, visit=9).keep.sum() == 5


def test_a_filter_that_calls_everything_clean_leaves_a_client_alone():
    found = Selection()(torch.ones(6, dtype=torch.bool), GIVEN, GLOBAL, LOCAL)
    assert found.keep.all()
    assert torch.equal(found.labels, GIVEN)
    assert found.noise_level == 0


def test_selection_writes_into_nothing():
    before = GIVEN.clone(), CLEAN.clone()
    Selection()(CLEAN, GIVEN, GLOBAL, LOCAL)
    assert torch.equal(GIVEN, before[0])
    assert torch.equal(CLEAN, before[1])


# ------------------------------------------------------------------------------------------------------ regulariser


def test_divergence_of_the_mean_prediction():
    v = vector("feddiv.reg")
    logits = torch.tensor([v.inputs["q"]], dtype=torch.float64).log()
    assert divergence_from_uniform(logits).item() == v.approx("reg")
    assert divergence_from_uniform(torch.zeros(4, 3, dtype=torch.float64)).item() == v.approx("reg_uniform")


def test_divergence_is_of_the_mean_and_not_a_mean_of_divergences():
    logits = 3 * torch.randn(7, 4, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    q = torch.softmax(logits, 1).numpy().mean(0)
    expected = sum(math.log(0.25 / c) / 4 for c in q)
    assert divergence_from_uniform(logits).item() == pytest.approx(expected, rel=1e-12)
    sure = 30 * torch.eye(4, dtype=torch.float64)
    assert divergence_from_uniform(sure).item() == pytest.approx(0, abs=1e-9)


def test_divergence_of_a_padded_batch_is_that_of_its_samples():
    logits = torch.randn(5, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    padded = torch.cat([logits, torch.full((2, 3), 7.0).double()]).requires_grad_()
    weight = torch.tensor([1.0] * 5 + [0.0] * 2, dtype=torch.float64)
    found = divergence_from_uniform(padded, weight)
    assert found.item() == pytest.approx(divergence_from_uniform(logits).item(), rel=1e-12)
    found.backward()
    assert padded.grad is not None
    assert padded.grad.isfinite().all()
    assert (padded.grad[5:] == 0).all()


def test_divergence_of_a_batch_without_a_weighted_row_is_zero_and_pulls_nothing():
    logits = torch.randn(3, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64).requires_grad_()
    found = divergence_from_uniform(logits, torch.zeros(3, dtype=torch.float64))
    found.backward()
    assert found.item() == 0
    assert logits.grad is not None
    assert (logits.grad == 0).all()


def test_gradient_of_the_divergence_and_its_stability():
    logits = torch.randn(3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).requires_grad_()
    assert torch.autograd.gradcheck(divergence_from_uniform, (logits,))
    extreme = (1e4 * torch.eye(4)[:2]).requires_grad_()
    found = divergence_from_uniform(extreme)
    found.backward()
    assert found.isfinite()
    assert extreme.grad is not None
    assert extreme.grad.isfinite().all()


def test_the_divergence_runs_stacked():
    logits = torch.randn(3, 5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    stacked = torch.vmap(divergence_from_uniform)(logits)
    torch.testing.assert_close(stacked, torch.stack([divergence_from_uniform(x) for x in logits]))
