"""FedES's criticality, distances, qualities and masks: loops in numpy, two oracles for transport, the theorem."""

import math
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.stats import spearmanr, wasserstein_distance
from sklearn.mixture import GaussianMixture
from torch import Tensor, nn

from flnl.core.payload import Payload
from flnl.evaluation.metrics import squared_error, squared_error_floor, true_quality
from flnl.methods.fedes.aggregator import QualityMean
from flnl.methods.fedes.criticality import criticalities, emd, emd_weighted, flattened, profile, shared_subset
from flnl.methods.fedes.exchange import ClientQualities
from flnl.methods.fedes.quality import (
    of_quality,
    quality_of_confidence,
    quality_of_relevance,
    sign_statistic,
    signed,
    unsure_share,
)
from flnl.methods.fedes.selective_decay import (
    critical_count,
    decayed_gradients,
    decayed_update,
    ranked_masks,
    ranks,
    step_masks,
)
from flnl.numerics.ranks import rank_correlation
from flnl.numerics.scaling import quality
from tests.toys import vector
from tests.vectors.baselines import baseline, check

Array = NDArray[np.float64]


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def row(values: Any) -> Tensor:
    """As the weight of a layer: of two dimensions."""
    return tensor(values)[None]


def masks_of(criticality: Mapping[str, Tensor], rho: float) -> dict[str, Tensor]:
    return ranked_masks(ranks(criticality), rho)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ----------------------------------------------------------------------------------------------------- criticality


def test_criticality_of_clients_and_server():
    v = vector("fedes.cop")
    w, moves, shares = row(v.inputs["w"]), v.inputs["delta"], v.inputs["weights"]
    clients = [flattened({"w": w}, {"w": w + row(d)}) for d in moves]
    server = flattened({"w": w}, {"w": w + sum(s * row(d) for s, d in zip(shares, moves, strict=True))})
    means = [sign_statistic(g) for g in clients]
    assert means == v.approx("g_n_mean")
    assert server.tolist() == v.approx("g_s")
    assert sign_statistic(server) == v.approx("g_s_mean")
    assert sum(s * m for s, m in zip(shares, means, strict=True)) == v.approx("weighted_mean_of_means")
    assert sign_statistic(server) <= v.expected["weighted_mean_of_means"]


def test_what_is_compared():
    module = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2)).double()
    before = {k: t.clone() for k, t in module.state_dict().items()}
    after = {k: t + 1 for k, t in before.items()}
    found = dict(criticalities(before, after))
    assert list(found) == ["0.weight", "3.weight"]
    for name, g in found.items():
        np.testing.assert_allclose(g.numpy(), np.abs(before[name].numpy()), rtol=1e-12)
    assert flattened(before, after).tolist() == [x for g in found.values() for x in g.flatten().tolist()]
    everything = dict(criticalities(before, after, scope="all"))
    assert set(everything) == {name for name, _ in module.named_parameters()}, "running statistics are not learned"
    torch.testing.assert_close(flattened(before, after, steps=4), flattened(before, after) / 4)


def test_a_model_without_weights_is_refused():
    with pytest.raises(ValueError, match="no parameter in scope dims_2_4"):
        flattened({"b": torch.zeros(3)}, {"b": torch.ones(3)})


# -------------------------------------------------------------------------------------------------------- distance


def test_distance_of_equal_sizes():
    v = vector("fedes.emd.equal")
    client, server = tensor(v.inputs["g_n"]), tensor(v.inputs["g_s"])
    found = emd(profile(client.flip(0)), profile(server))
    assert found == v.approx("emd")
    assert found == pytest.approx(wasserstein_distance(client, server))
    of = sign_statistic(client), sign_statistic(server)
    assert np.sign(of[0] - of[1]) == v.expected["sign"]
    assert signed(found, *of) == v.approx("signed")


def test_distance_of_unequal_sizes():
    v = vector("fedes.emd.unequal")
    client, server = tensor(v.inputs["g_n"]), tensor(v.inputs["g_s"])
    found = emd_weighted(client, server)
    assert found == v.approx("emd")
    of = sign_statistic(client), sign_statistic(server)
    assert of[0] - of[1] == v.approx("mean_difference")
    assert np.sign(signed(found, *of)) == v.expected["sign"]


@given(st.integers(1, 40), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_both_distances_agree(size: int, seed: int):
    a, b = normal(size, seed=seed).abs(), normal(size, seed=seed + 1).abs() ** 2
    exact = emd(profile(a), profile(b))
    assert exact == pytest.approx(np.abs(np.sort(a.numpy()) - np.sort(b.numpy())).mean(), abs=1e-12)
    assert emd_weighted(a, b) == pytest.approx(exact, abs=1e-12)
    assert wasserstein_distance(a, b) == pytest.approx(exact, abs=1e-12)
    assert emd(profile(a), profile(a[torch.randperm(size)])) == 0


def test_distance_of_weighted_values():
    a, b = tensor([0.0, 1.0, 5.0]), tensor([2.0, 0.5])
    p, q = tensor([1.0, 3.0, 0.0]), tensor([2.0, 6.0])
    expected = wasserstein_distance(a, b, p, q)
    assert emd_weighted(a, b, p, q) == pytest.approx(expected)
    assert emd_weighted(a, b, p / 10, q) == pytest.approx(expected)  # masses are shares


def test_distance_is_not_squared_and_not_lost_in_float32():
    shift = torch.full((1000,), 0.25)
    assert emd_weighted(torch.zeros(1000), shift) == pytest.approx(0.25)
    generator = torch.Generator().manual_seed(0)
    a = torch.rand(3_000_000, generator=generator)
    expected = np.abs(np.sort(a.double().numpy()) - np.sort((a.double() * 1.01).float().double().numpy())).mean()
    assert emd(profile(a), profile((a.double() * 1.01).float())) == pytest.approx(expected, rel=1e-9)


def test_profiles_that_cannot_be_matched_are_refused():
    with pytest.raises(ValueError, match="3 and 2 values"):
        emd(torch.zeros(3), torch.zeros(2))
    with pytest.raises(ValueError, match="0 and 0 values"):
        emd(torch.zeros(0), torch.zeros(0))
    for values, mass in (([], None), ([math.nan], None), ([1.0], [0.0]), ([1.0, 2.0], [2.0, -1.0])):
        with pytest.raises(ValueError, match="both sides need"):
            emd_weighted(tensor(values), tensor([1.0]), None if mass is None else tensor(mass))


def test_distance_by_quantiles_and_by_a_shared_subset():
    a, b = normal(20_000).abs(), 1.3 * normal(20_000, seed=1).abs()
    exact = emd(profile(a), profile(b))
    by_quantiles = [profile(x, how="quantiles", quantiles=1000) for x in (a, b)]
    assert [len(p) for p in by_quantiles] == [1000, 1000]
    assert emd(*by_quantiles) == pytest.approx(exact, rel=0.02)
    subset = shared_subset(20_000, np.random.default_rng(0), 5000)
    assert len(set(subset.tolist())) == 5000
    assert emd(*(profile(x, how="subset", subset=subset) for x in (a, b))) == pytest.approx(exact, rel=0.2)
    torch.testing.assert_close(profile(a, how="subset", subset=subset), a[subset].sort().values)
    assert len(shared_subset(7, np.random.default_rng(0))) == 7
    with pytest.raises(ValueError, match="give subset"):
        profile(a, how="subset")


def test_quantiles_of_as_many_values_are_the_values():
    a = normal(50)
    assert torch.equal(profile(a, how="quantiles", quantiles=50), profile(a))
    assert torch.equal(profile(a, how="quantiles", quantiles=100), profile(a).repeat_interleave(2))
    assert profile(tensor([3.0, 1.0, 2.0]), how="quantiles", quantiles=1).tolist() == [2]


# ------------------------------------------------------------------------------------------------------------ sign


def test_a_sign_is_positive_for_independent_clients():
    v = vector("fedes.sign_vacuous")
    rng = np.random.default_rng(v.inputs["seed"])
    w = torch.from_numpy(rng.normal(size=(1, v.inputs["m"])))
    moves = torch.from_numpy(rng.normal(size=(v.inputs["N"], 1, v.inputs["m"])))
    server = flattened({"w": w}, {"w": w + moves.mean(0)})
    clients = [flattened({"w": w}, {"w": w + move}) for move in moves]
    signs = [signed(1.0, sign_statistic(g), sign_statistic(server)) for g in clients]
    assert sum(s > 0 for s in signs) == v.expected["n_positive_signs"]
    ratio = np.mean([sign_statistic(g) for g in clients]) / sign_statistic(server)
    assert ratio == v.approx("mean_ratio")


def test_signs():
    assert [signed(0.5, *of) for of in ((2.0, 1.0), (1.0, 2.0), (1.0, 1.0))] == [0.5, -0.5, 0.0]
    assert signed(0.5, 0.0, 0.0, "none") == 0.5
    assert sign_statistic(tensor([1.0, 3.0]), "none") == 0


def test_sign_by_a_mixture_of_logarithms():
    rng = np.random.default_rng(0)
    logs = rng.permutation(np.concatenate([rng.normal(-12, 1, 700), rng.normal(-6, 0.7, 300)]))
    fitted = GaussianMixture(2, random_state=0).fit(logs[:, None])
    found = sign_statistic(torch.from_numpy(np.exp(logs)), "gmm1d")
    assert found == pytest.approx(fitted.means_.max(), abs=0.05)
    assert math.isfinite(sign_statistic(torch.cat([torch.zeros(5), torch.rand(50)]), "gmm1d"))
    assert sign_statistic(torch.full((9,), 2.0), "gmm1d") == pytest.approx(math.log(2))


def test_a_mean_is_taken_in_float64():
    values = torch.cat([torch.full((1,), 1e8), torch.full((1_000_000,), 1e-1)])
    assert sign_statistic(values) == pytest.approx((1e8 + 1e5) / 1_000_001, rel=1e-6)


# --------------------------------------------------------------------------------------------------------- quality


def test_quality_where_all_are_equal():
    v = vector("fedes.quality_degenerate")
    assert quality(v.inputs["d"]).tolist() == v.expected["rho"]
    assert quality([0.1 + 0.2, 0.3]).tolist() == [1, 1]
    assert quality([0.0, 0.0]).tolist() == [1, 1]
    assert quality([5.0]).tolist() == [1]
    assert quality([]).tolist() == []


def test_quality_of_distances():
    np.testing.assert_allclose(quality([-1.0, 3.0, 0.0]), [0, 1, 0.25])
    np.testing.assert_allclose(quality([-1.0, 3.0, 0.0], floor=0.3), [0.3, 1, 0.3])
    np.testing.assert_allclose(quality([1e-9, 3e-9, 2e-9]), [0, 1, 0.5])
    with pytest.raises(ValueError, match="finite"):
        quality([0.1, math.nan])


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=12), st.floats(0.1, 9), st.floats(-5, 5))
@settings(deadline=None)
def test_quality_is_blind_to_scale_and_shift(d: list[float], scale: float, shift: float):
    found = quality(d)
    assert ((found >= 0) & (found <= 1)).all()
    if np.ptp(d) > 1e-3:
        assert {found.min(), found.max()} == {0.0, 1.0}
        np.testing.assert_allclose(quality(scale * np.array(d) + shift), found, atol=1e-6)


def test_other_indicators():
    found = quality_of_confidence([0.1, 0.2, 0.3, 0.9])
    z = (np.array([0.1, 0.2, 0.3, 0.9]) - 0.375) / np.std([0.1, 0.2, 0.3, 0.9])
    np.testing.assert_allclose(found, 1 - np.clip(z, 0, 1))
    assert quality_of_confidence([0.4, 0.4]).tolist() == [1, 1]
    logits = tensor([[0.7, 0.3], [0.69, 0.31], [0.2, 0.8]]).log()
    assert unsure_share(logits) == pytest.approx(1 / 3)
    overflowed = torch.cat([logits, tensor([[math.nan, 0.0], [math.inf, 0.0]])])
    assert unsure_share(overflowed) == pytest.approx(3 / 5)
    assert unsure_share(overflowed[3:]) == 1
    odds = np.exp([0.1, 0.5, 0.3]) / np.exp([0.1, 0.5, 0.3]).sum()
    np.testing.assert_allclose(quality_of_relevance([0.1, 0.5, 0.3]), quality(odds))
    sharper = np.exp([1, 5, 3])
    np.testing.assert_allclose(quality_of_relevance([0.1, 0.5, 0.3], temperature=0.1), quality(sharper))
    assert np.isfinite(quality_of_relevance([1e4, 0.0])).all()


def test_aggregation_weights():
    v = vector("fedes.naagg")
    known = Payload(ClientQualities(tensor(v.inputs["rho"])))
    alone = torch.eye(len(v.inputs["n"]), dtype=torch.float64)  # so that the mean is the weights
    results: list[Any] = [
        SimpleNamespace(client=k, num_samples=n, params={"w": alone[k]}) for k, n in enumerate(v.inputs["n"])
    ]
    mean = QualityMean("quality")
    received = {"w": torch.zeros(len(results), dtype=torch.float64)}
    found = mean.combine(received, [mean.block(received, results, known)], known)
    assert found.params["w"].tolist() == v.approx("weights")


def test_clients_of_half_the_quality_take_part():
    assert of_quality([0.4, 0.5, 0.9]).tolist() == [False, True, True]


def test_how_good_an_estimate_is():
    true, given = np.array([0, 1, 2, 2]), np.array([0, 1, 1, 2])
    assert true_quality(true, given) == 0.75
    assert math.isnan(true_quality(true[:0], given[:0]))
    assert squared_error([0.0, 1.0], [0.5, 0.8]) == pytest.approx((0.25 + 0.04) / 2)
    q = [0.3, 0.9, 0.5]
    assert squared_error_floor(q) == pytest.approx(((0.3 - 0) ** 2 + (0.9 - 1) ** 2 + (0.5 - 1 / 3) ** 2) / 3)
    assert squared_error_floor([0.0, 1.0, 0.2]) == 0


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=3, max_size=15))
@settings(deadline=None)
def test_rank_correlation_is_spearmans(pairs: list[tuple[int, int]]):
    a, b = (np.array(side, float) for side in zip(*pairs, strict=True))
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        assert math.isnan(rank_correlation(a, b))
    else:
        assert rank_correlation(a, b) == pytest.approx(spearmanr(a, b).statistic, abs=1e-9)
        assert rank_correlation(np.exp(a), b) == pytest.approx(rank_correlation(a, b), abs=1e-12)


def test_floor_of_the_error():
    v = vector("fedes.mse_floor")
    rng = np.random.default_rng(v.inputs["seed"])
    for mu in v.inputs["mu"]:
        rates = rng.normal(mu, v.inputs["sigma"], (v.inputs["trials"], v.inputs["N"])).clip(0, 1)
        errors = np.array([squared_error_floor(1 - r) for r in rates])
        found = [errors.mean(), *np.quantile(errors, [0.05, 0.5, 0.95])]
        assert found == pytest.approx(v.expected[f"mu{mu}"], abs=v.tolerance)


# ----------------------------------------------------------------------------------------------------------- masks


def test_masks_and_a_step_of_the_baselines():
    b = baseline("fedes_segd")
    g, w, gradient, rho = row(b.inputs.cop), row(b.inputs.w), row(b.inputs.grad), b.inputs.rho
    assert critical_count(g.numel(), rho) == b.expected["m_c"]
    masks = masks_of({"w": g}, rho)
    check(masks["w"][0].double(), b.expected["mask"], b)
    assert g[masks["w"]].min().item() == b.expected["threshold"]
    found = decayed_update({"w": w}, {"w": w - b.inputs.lr * gradient}, masks, rho)
    check(found["w"][0], b.expected["w_new"], b)
    by_gradient = w - b.inputs.lr * decayed_gradients({"w": gradient}, masks, rho)["w"]
    check(by_gradient[0], b.expected["w_new"], b)


def test_no_quality_masks_everything_whatever_ties():
    masks = masks_of({"w": torch.zeros(2, 3), "v": torch.ones(1, 2)}, 0.0)
    assert not masks["w"].any()
    assert not masks["v"].any()
    full = masks_of({"w": torch.zeros(2, 3), "v": torch.ones(1, 2)}, 1.0)
    assert full["w"].all()
    assert full["v"].all()


@pytest.mark.parametrize(
    ("size", "rho", "count"), [(100, 0.29, 29), (10, 0.3, 3), (7, 0.5, 3), (11_000_000, 0.1, 1_100_000)]
)
def test_number_of_critical_entries(size: int, rho: float, count: int):
    assert critical_count(size, rho) == count


@given(
    st.lists(st.integers(0, 4), min_size=2, max_size=30),
    st.integers(1, 29),
    st.floats(0, 1),
)
@settings(deadline=None)
def test_masks_hold_the_largest_and_exactly_so_many(entries: list[int], cut: int, rho: float):
    cut = min(cut, len(entries) - 1)
    g = {"a": tensor(entries[:cut]), "b": tensor(entries[cut:])}
    masks = masks_of(g, rho)
    chosen = torch.cat([masks["a"], masks["b"]]).tolist()
    count = int(rho * len(entries) + 1e-9)
    by_rank = sorted(range(len(entries)), key=lambda i: (-entries[i], i))[:count]  # ties: the earlier
    assert [i for i, c in enumerate(chosen) if c] == sorted(by_rank)
    steps = step_masks({k: torch.ones_like(t)[None] for k, t in g.items()}, {k: t[None] for k, t in g.items()}, rho)
    assert sum(int(m.sum()) for m in steps.values()) == max(count, 1)


def test_one_threshold_for_all_tensors():
    g = {"small": torch.full((2, 2), 0.1), "large": torch.full((3, 2), 5.0)}
    masks = masks_of(g, 0.6)
    assert masks["large"].all()
    assert not masks["small"].any()


def test_masks_of_a_step():
    params = {"w": row([1.0, -2.0, 0.5]), "b": tensor([9.0]), "k": normal(1, 1, 1, 2)}
    gradients = {"w": row([1.0, 0.1, -3.0]), "b": tensor([9.0]), "k": torch.zeros(1, 1, 1, 2).double()}
    masks = step_masks(gradients, params, 0.4)  # |g w| = 1, 0.2, 1.5, 0, 0
    assert masks["w"].tolist() == [[True, False, True]]
    assert not masks["k"].any()
    assert "b" not in masks
    assert step_masks(gradients, params, 0.0)["w"].tolist() == [[False, False, True]]
    assert "b" in step_masks(gradients, params, 0.4, scope="all")
    assert step_masks({}, {}, 0.5) == {}


def test_as_many_entries_are_chosen_of_stacked_clients():
    """Also in single precision, in which 0.29 of 100 entries are fewer than 29."""
    place = {"w": torch.arange(100, dtype=torch.int32)}
    shares = [0.0, 0.29, 0.57, 0.58, 0.999, 1.0]
    for dtype in (torch.float32, torch.float64):
        masks = torch.vmap(lambda rho: ranked_masks(place, rho)["w"])(tensor(shares).to(dtype))
        assert masks.sum(1).tolist() == [0, 29, 57, 58, 99, 100]


def test_masks_of_a_step_run_stacked():
    params, gradients = normal(4, 3, 5), normal(4, 3, 5, seed=1)
    rho = tensor([0.0, 0.29, 0.6, 1.0])

    def one(w: Tensor, g: Tensor, rho: Tensor) -> Tensor:
        masks = step_masks({"w": g}, {"w": w}, rho)
        return decayed_update({"w": w}, {"w": w - g}, masks, rho)["w"] + decayed_gradients({"w": g}, masks, rho)["w"]

    found = torch.vmap(one)(params, gradients, rho)
    for i in range(4):
        alone = one(params[i], gradients[i], float(rho[i]))  # type: ignore[arg-type]
        torch.testing.assert_close(found[i], alone, rtol=1e-12, atol=1e-12)


# ---------------------------------------------------------------------------------------------------------- update


def test_weight_decay_leaks_past_masked_gradients():
    v = vector("fedes.weight_decay_leak")
    w, lr, decay = row([v.inputs["w"]]), v.inputs["lr"], v.inputs["wd"]
    masks = {"w": row([v.inputs["mask"]]).bool()}
    gradient = decayed_gradients({"w": row([0.7])}, masks, 0.5)["w"]
    assert gradient.item() == 0
    leaked = w - lr * (gradient + decay * w)
    assert leaked.item() == v.approx("grad_mask_only")
    stepped = w - lr * (row([0.7]) + decay * w)
    found = decayed_update({"w": w}, {"w": stepped}, masks, 0.5)["w"]
    assert found.item() == v.approx("update_mask")
    assert found.item() == v.inputs["w"]


def test_what_is_not_ranked():
    before, after = {"w": row([1.0, 2.0]), "b": tensor([1.0])}, {"w": row([2.0, 4.0]), "b": tensor([3.0])}
    masks = {"w": torch.tensor([[True, False]])}
    found = decayed_update(before, after, masks, 0.25)
    assert found["w"].tolist() == [[1.25, 2.0]]
    assert found["b"].tolist() == [1.5]  # slowed down, not masked
    gradients = decayed_gradients({"w": row([1.0, 1.0]), "b": tensor([1.0])}, masks, 0.25)
    assert gradients["w"].tolist() == [[0.25, 0.0]]
    assert gradients["b"].tolist() == [1.0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_full_quality_is_the_plain_update_to_the_bit(dtype: torch.dtype):
    before, after = {"w": normal(30, 30).to(dtype)}, {"w": normal(30, 30, seed=1).to(dtype)}
    masks = masks_of({"w": normal(30, 30, seed=2).abs()}, 1.0)
    assert torch.equal(decayed_update(before, after, masks, 1.0)["w"], after["w"])
    assert torch.equal(decayed_update(before, after, {}, 1.0)["w"], after["w"])
    assert torch.equal(decayed_gradients(after, masks, 1.0)["w"], after["w"])
    frozen = masks_of({"w": normal(30, 30, seed=2).abs()}, 0.0)
    assert torch.equal(decayed_update(before, after, frozen, 0.0)["w"], before["w"])
    assert torch.equal(decayed_update(before, after, {}, 0.0)["w"], before["w"])


def test_decay_keeps_the_precision_of_what_it_scales():
    gradient = normal(5, 5)
    masks = {"w": torch.ones(5, 5, dtype=torch.bool)}
    np.testing.assert_allclose(decayed_gradients({"w": gradient}, masks, 0.1)["w"], 0.1 * gradient, rtol=1e-15)
    moved = decayed_update({"w": torch.zeros(5, 5).double()}, {"w": gradient}, masks, 0.1)["w"]
    np.testing.assert_allclose(moved, 0.1 * gradient, rtol=1e-15)


# --------------------------------------------------------------------------------------------------------- theorem


def test_theorem_1():
    """Of a loss with gradient c everywhere: what is lost to plain descent is lr Σ (1 - ρ M) c²."""
    v = vector("fedes.thm1")
    c, lr, w = row(v.inputs["grad"]), v.inputs["lr"], normal(1, 5)
    plain = w - lr * c

    def lost(masks: dict[str, Tensor], rho: float) -> float:
        return float((c * (decayed_update({"w": w}, {"w": plain}, masks, rho)["w"] - plain)).sum())

    mask = {"w": row(v.inputs["mask"]).bool()}
    rho = v.inputs["rho"]
    assert lost(mask, rho) == v.approx("difference")
    by_formula = lr * sum(
        g**2 * ((1 - rho) if m else 1) for g, m in zip(v.inputs["grad"], v.inputs["mask"], strict=True)
    )
    assert by_formula == v.approx("formula")
    assert lost(masks_of({"w": c.abs()}, 1.0), 1.0) == v.approx("rho1")
    assert lost(masks_of({"w": c.abs()}, 0.0), 0.0) == v.approx("rho0")
    falling = [lost(masks_of({"w": c.abs()}, r), r) for r in np.linspace(0, 1, 11)]
    assert (np.diff(falling) <= 1e-12).all()
    assert (np.diff(falling)[1:] < 0).all()  # a tenth of five entries is none
