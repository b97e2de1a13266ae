"""FedPeer's private labels and its losses, against matrices written out, searches and autograd."""

import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.stats import chisquare
from torch import Tensor

from flnl.config.check import check_config
from flnl.config.compose import load
from flnl.core.errors import UserError
from flnl.data.noise.transition import transmit
from flnl.evaluation.metrics import l1_error
from flnl.methods.fedpeer.exchange import PrivacySpent
from flnl.methods.fedpeer.loss import peer_labels
from flnl.numerics.ramp import ramped
from flnl.numerics.randomised_response import RandomisedResponse, nearest_distribution
from flnl.numerics.scaling import label_shares
from flnl.parts.losses.peer import cores_loss, peer_loss
from flnl.run.checkpoint import decode, encode
from tests.toys import vector
from tests.vectors.baselines import baseline, check

Array = NDArray[np.float64]


def written_out(epsilon: float, classes: int) -> Array:
    """T_DP entry by entry."""
    total = math.exp(epsilon) + classes - 1
    return np.array([[(math.exp(epsilon) if i == j else 1) / total for j in range(classes)] for i in range(classes)])


# ------------------------------------------------------------------------------------------------------- response


def test_probability_of_keeping_a_label():
    v, b = vector("fedpeer.tdp.diag"), baseline("fedpeer_Tdp_diag")
    for i, (classes, epsilon) in enumerate(zip(v.inputs["K"], v.inputs["epsilon"], strict=True)):
        response = RandomisedResponse(epsilon, classes)
        assert response.keep == v.near(v.expected["diag"][i])
        assert response.other == v.near(v.expected["offdiag"][i])
        assert [classes, epsilon] == b.inputs.pairs[i]
        check(response.keep, b.expected["diag"][i], b)
        check(response.other, b.expected["off"][i], b)
        exact = math.log(4 * (classes - 1))
        assert exact == v.near(v.expected["ln_4_K_minus_1"][i])
        assert RandomisedResponse(exact, classes).keep == pytest.approx(0.8, abs=1e-12)


@pytest.mark.parametrize(("epsilon", "classes"), [(0.5, 2), (2.0, 10), (3.58, 10), (8.0, 100)])
def test_the_matrix_is_the_definition_and_private(epsilon: float, classes: int):
    T = RandomisedResponse(epsilon, classes).matrix()
    np.testing.assert_allclose(T, written_out(epsilon, classes), rtol=1e-12)
    np.testing.assert_allclose(RandomisedResponse(epsilon, classes).inverse() @ T, np.eye(classes), atol=1e-9)
    np.testing.assert_array_equal(T, T.T)


def test_likelihoods_differ_by_no_more_than_the_budget():
    v = vector("fedpeer.tdp.ratio")
    T = RandomisedResponse(v.inputs["epsilon"], v.inputs["K"]).matrix()
    assert (T[:, None, :] / T[None, :, :]).max() == v.approx("ratio")
    assert T.sum(1).tolist() == v.near([v.expected["row_sum"]] * v.inputs["K"])


def test_a_large_budget_is_no_noise():
    for epsilon in (800.0, math.inf):
        response = RandomisedResponse(epsilon, 5)
        assert (response.keep, response.other) == (1.0, 0.0)
        labels = np.arange(50) % 5
        np.testing.assert_array_equal(response.randomised(labels, np.random.default_rng(0)), labels)
        for projection in ("simplex", "clip_renorm", "mle"):
            shares = np.array([0.5, 0.2, 0.3, 0.0, 0.0])
            np.testing.assert_allclose(response.distribution(shares, projection), shares, atol=1e-12)


def test_randomised_labels_follow_the_matrix():
    response, n = RandomisedResponse(1.0, 4), 40_000
    for label in range(4):
        found = response.randomised(np.full(n, label), np.random.default_rng(label))
        assert chisquare(np.bincount(found, minlength=4), n * response.matrix()[label]).pvalue > 1e-3
    labels = np.arange(100) % 4
    before = labels.copy()
    first, again = (response.randomised(labels, np.random.default_rng(7)) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(labels, before)


def test_expected_shares_are_recovered():
    v = vector("fedpeer.tdp.inverse")
    response, p = RandomisedResponse(v.inputs["epsilon"], v.inputs["K"]), np.array(v.inputs["p"])
    assert response.keep == v.approx("T_diag")
    assert response.other == v.approx("T_off")
    seen = response.matrix().T @ p
    assert seen.tolist() == v.approx("p_check")
    assert response.recovered(seen).tolist() == v.approx("recovered")
    assert (response.inverse().T @ seen).tolist() == v.approx("recovered")
    for projection in ("simplex", "clip_renorm", "mle"):
        assert response.distribution(seen, projection).tolist() == v.approx("recovered")


def test_negative_shares_and_what_becomes_of_them():
    v = vector("fedpeer.tdp.negative")
    response, counts = RandomisedResponse(v.inputs["epsilon"], v.inputs["K"]), np.array(v.inputs["dp_label_counts"])
    shares = counts / counts.sum()
    raw = response.recovered(shares)
    assert raw.tolist() == v.approx("raw")
    assert raw.sum() == v.approx("raw_sum")
    assert ((raw < 0) == (shares < response.other)).all()
    assert response.distribution(shares, "clip_renorm").tolist() == v.approx("clip_renorm")
    assert response.distribution(shares).tolist() == v.approx("simplex_projection")
    assert response.distribution(shares, "mle").tolist() == v.approx("maximum_likelihood")


def test_debiasing_of_the_baselines():
    b = baseline("fedpeer_debias")
    response, shares = RandomisedResponse(b.inputs.epsilon, b.inputs.K), np.array(b.inputs.p_check)
    check(response.recovered(shares), b.expected["raw"], b)
    check(response.distribution(shares, "clip_renorm"), b.expected["projected"], b)
    check(response.matrix().T @ response.recovered(shares), b.expected["forward_check"], b)


def likeliest_by_em(shares: Array, T: Array) -> Array:
    q = np.full(len(shares), 1 / len(shares))
    for _ in range(20_000):
        q = q * (T @ (shares / (T.T @ q)))
    return q


@pytest.mark.parametrize("seed", range(8))
def test_projections_are_the_nearest_and_the_likeliest(seed: int):
    rng = np.random.default_rng(seed)
    response = RandomisedResponse(float(rng.choice([0.5, 1.0, 2.0])), 5)
    shares = rng.dirichlet(np.full(5, 0.5))
    simplex = {"bounds": [(0, 1)] * 5, "constraints": {"type": "eq", "fun": lambda q: q.sum() - 1}}
    raw = response.recovered(shares)
    nearest = minimize(lambda q: ((q - raw) ** 2).sum(), np.full(5, 0.2), tol=1e-14, **simplex).x  # type: ignore[call-overload]
    np.testing.assert_allclose(response.distribution(shares), nearest, atol=1e-5)
    likeliest = likeliest_by_em(shares, response.matrix())
    np.testing.assert_allclose(response.distribution(shares, "mle"), likeliest, atol=2e-3)
    found = response.distribution(shares, "mle")
    by = [float(shares @ np.log(response.matrix().T @ q)) for q in (found, likeliest)]
    assert by[0] >= by[1] - 1e-12


@given(st.lists(st.floats(0, 1), min_size=2, max_size=20).filter(lambda x: sum(x) > 0.1), st.floats(0.05, 9))
@settings(max_examples=80, deadline=None)
def test_every_projection_is_a_distribution(counts: list[float], epsilon: float):
    shares = np.array(counts) / sum(counts)
    response = RandomisedResponse(epsilon, len(shares))
    raw = response.recovered(shares)
    assert raw.sum() == pytest.approx(1, abs=1e-6)
    for projection in ("simplex", "clip_renorm", "mle"):
        q = response.distribution(shares, projection)
        assert (q >= 0).all()
        assert q.sum() == pytest.approx(1, abs=1e-6)
        assert (np.argsort(q[np.argsort(shares)]) == np.arange(len(q))).all() or np.ptp(np.sort(q)) >= 0
        if raw.min() > 1e-9:
            np.testing.assert_allclose(q, raw, atol=1e-6)


# ------------------------------------------------------------------------------------------------- small and large ε


def in_sixty_digits(epsilon: float, shares: Array, what: str) -> Array:
    """What is recovered, and its projections, as their definitions read, of shares that sum to 1 exactly."""
    with localcontext() as context:
        context.prec = 60
        p = [Decimal(float(x)) for x in shares]
        p = [x / sum(p) for x in p]
        stays, classes = Decimal(epsilon).exp(), len(p)
        a, b = stays / (stays + classes - 1), 1 / (stays + classes - 1)
        raw = [(x - b) / (a - b) for x in p]
        if what == "recovered":
            found = raw
        elif what == "clip_renorm":
            clipped = [max(x, Decimal(0)) for x in raw]
            found = [x / sum(clipped) for x in clipped]
        elif what == "simplex":
            ordered = sorted(raw, reverse=True)
            levels = [(sum(ordered[:m]) - 1) / m for m in range(1, classes + 1)]
            level = Decimal([t for t, x in zip(levels, ordered, strict=True) if x > t][-1])
            found = [max(Decimal(0), x - level) for x in raw]
        else:
            c, ordered = Decimal(b / (a - b)), sorted(p, reverse=True)
            levels = [sum(ordered[:m]) / (1 + c * m) for m in range(1, classes + 1)]
            level = Decimal([t for t, x in zip(levels, ordered, strict=True) if x > c * Decimal(t)][-1])
            found = [max(Decimal(0), x / level - c) for x in p]
        return np.array([float(x) for x in found])


def drawn_shares(epsilon: float, classes: int, rng: np.random.Generator) -> list[Array]:
    """Of few labels, with ties; of any; and so near to equal that their differences are of the size of ε."""
    near = np.maximum(1 / classes + (rng.random(classes) - 0.5) * epsilon / classes * rng.choice([0.1, 1, 10]), 0)
    few = np.bincount(rng.integers(0, classes, int(rng.integers(1, 2000))), minlength=classes)
    return [few / few.sum(), rng.dirichlet(np.ones(classes)), near / near.sum(), np.full(classes, 1 / classes)]


@pytest.mark.parametrize("epsilon", [2.3e-16, 1e-15, 1e-12, 1e-9, 1e-7, 1e-6, 1e-3, 0.5, 1.0, 3.58, 100.0, 700.0])
def test_every_epsilon_is_right_to_nine_digits(epsilon: float):
    rng = np.random.default_rng(1)
    for classes in (2, 3, 10, 100):
        response = RandomisedResponse(epsilon, classes)
        for shares in drawn_shares(min(epsilon, 1.0), classes, rng):
            want = in_sixty_digits(epsilon, shares, "recovered")
            np.testing.assert_allclose(response.recovered(shares), want, rtol=1e-9, atol=1e-9 * np.abs(want).max())
            for projection in ("simplex", "clip_renorm", "mle"):
                found = response.distribution(shares, projection)
                np.testing.assert_allclose(found, in_sixty_digits(epsilon, shares, projection), atol=1e-9)
                assert (found >= 0).all()
                assert found.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("epsilon", [2.3e-16, 1e-12, 1e-6, 0.5, 3.58])
def test_the_gap_has_all_its_digits(epsilon: float):
    with localcontext() as context:
        context.prec = 60
        stays = Decimal(epsilon).exp()
        gap = float((stays - 1) / (stays + 9))
    assert RandomisedResponse(epsilon, 10).gap == pytest.approx(gap, rel=1e-13)


def test_an_epsilon_that_the_arithmetic_cannot_hold_is_refused():
    for epsilon, holds in ((2.3e-16, True), (2.2e-16, False), (1e-300, False)):
        words = ["method=fedpeer", f"method.epsilon={epsilon}"]
        if holds:
            check_config(load(words))
            continue
        with pytest.raises(UserError, match=f"^method.epsilon={epsilon}: must be greater than or equal to 0"):
            check_config(load(words))


def test_a_distribution_is_its_own_projection():
    q = np.array([0.2, 0.0, 0.8])
    np.testing.assert_allclose(nearest_distribution(q), q, atol=1e-15)
    np.testing.assert_allclose(nearest_distribution(q + 7), q, atol=1e-12)


def test_chance_of_a_negative_share():
    v = vector("fedpeer.tdp.negative_probability")
    for (classes, epsilon, count, share), expected in zip(v.inputs["cases"], v.expected["p_negative"], strict=True):
        found = RandomisedResponse(epsilon, classes).chance_of_negative(share, count)
        assert found == pytest.approx(expected, rel=1e-9)
    response, count = RandomisedResponse(1.0, 20), 20_000
    p = np.full(20, 0.99 / 19)
    p[0] = 0.01
    seen = np.random.default_rng(0).multinomial(count, response.matrix().T @ p, size=4000)[:, 0] / count
    negative = (response.recovered(seen) < 0).mean()
    assert negative == pytest.approx(response.chance_of_negative(0.01, count), abs=0.03)


def test_labels_there_and_back():
    """Of many labels, the recovered distribution is near the true one, and nearer with a larger budget."""
    truth = np.array([0.4, 0.3, 0.2, 0.1])
    labels = np.random.default_rng(0).choice(4, 60_000, p=truth)
    given = label_shares(labels, 4)
    errors = []
    for epsilon in (0.5, 2.0, 6.0):
        response = RandomisedResponse(epsilon, 4)
        noisy = response.randomised(labels, np.random.default_rng(1))
        errors.append(l1_error(response.distribution(label_shares(noisy, 4)), given))
        assert l1_error(label_shares(noisy, 4), given) > errors[-1]
    assert errors[0] < 0.08
    assert errors[1] < 0.02
    assert errors[2] < 0.005


def test_shares_of_no_labels_are_refused():
    with pytest.raises(ValueError, match="no labels"):
        label_shares(np.array([], np.int64), 3)
    assert label_shares(np.array([2, 2, 0]), 4).tolist() == pytest.approx([1 / 3, 0, 2 / 3, 0])


def test_l1_error_by_hand():
    assert l1_error(np.array([1.0, 0.0]), np.array([0.0, 1.0])) == 2
    assert l1_error(np.array([0.5, 0.5]), np.array([0.4, 0.6])) == pytest.approx(0.2)


def test_releases_add_up():
    spent = PrivacySpent()
    assert spent.most == spent.of(3) == 0
    once = spent.released(3, 2.0).released(5, 2.0)
    assert (once.of(3), once.of(5), once.of(4), once.most) == (2, 2, 0, 2)
    assert once.released(3, 1.5).of(3) == once.released(3, 1.5).most == 3.5
    assert spent.of(3) == 0  # the account itself never changes
    assert decode(encode(once)) == once


# ----------------------------------------------------------------------------------------------------- peer labels


def test_peer_labels_by_the_inverse_of_the_distribution():
    q = torch.tensor([0.2, 0.0, 0.5, 0.3])
    u = torch.tensor([0.0, 0.1999, 0.2001, 0.69, 0.71, 0.99999])
    assert peer_labels(q, u).tolist() == [0, 0, 2, 2, 3, 3]
    last = math.nextafter(1.0, 0.0)
    for weights in ([0.1] * 10, [1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [1 / 3] * 3):
        found = peer_labels(torch.tensor(weights), torch.tensor([0.0, last], dtype=torch.float64)).tolist()
        assert all(weights[label] > 0 for label in found)


@given(
    st.lists(st.floats(0, 1), min_size=1, max_size=12).filter(lambda x: sum(x) > 1e-3),
    st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=80, deadline=None)
def test_a_class_without_share_is_never_a_peer(weights: list[float], u: float):
    label = peer_labels(torch.tensor(weights, dtype=torch.float64), torch.tensor([u], dtype=torch.float64)).item()
    assert weights[int(label)] > 0
    below = sum(weights[: int(label)]) / sum(weights)
    assert below - 1e-9 <= u <= below + weights[int(label)] / sum(weights) + 1e-9


def test_peer_labels_follow_the_distribution():
    q = np.array([0.05, 0.4, 0.0, 0.35, 0.2])
    u = torch.from_numpy(np.random.default_rng(0).random(50_000))
    counts = np.bincount(peer_labels(torch.from_numpy(q), u).numpy(), minlength=5)
    assert counts[2] == 0
    assert chisquare(counts[q > 0], 50_000 * q[q > 0]).pvalue > 1e-3


# ----------------------------------------------------------------------------------------------------- peer losses


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def differentiated(loss: Any, logits: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.clone().requires_grad_()
    value = loss(logits)
    value.mean().backward()
    assert logits.grad is not None
    return value.detach(), logits.grad


@pytest.mark.parametrize("name", ["peer_loss_same_x", "peer_loss_is_linear", "peer_unbounded"])
def test_peer_loss_without_a_floor(name: str):
    b = baseline(name)
    labels, peers = torch.tensor(b.inputs.labels), torch.tensor(b.inputs.peer_labels)
    value, gradient = differentiated(lambda z: peer_loss(z, labels, peers, prob_floor=0.0), tensor(b.inputs.logits))
    check(value.mean(), b.expected["mean"], b)
    check(gradient, b.expected["grad"], b)
    if "per_sample" in b.expected:
        check(value, b.expected["per_sample"], b)
    if "bounded_eps1e_5" in b.expected:
        bounded = peer_loss(tensor(b.inputs.logits), labels, peers)
        check(bounded.mean(), b.expected["bounded_eps1e_5"], b)


def test_peer_loss_with_a_floor_in_both_terms():
    b = baseline("peer_loss_bounded")
    labels, peers = torch.tensor(b.inputs.labels), torch.tensor(b.inputs.peer_labels)
    value, gradient = differentiated(
        lambda z: peer_loss(z, labels, peers, prob_floor=b.inputs.eps, floor_terms="both"), tensor(b.inputs.logits)
    )
    check(value.mean(), b.expected["mean"], b)
    check(gradient, b.expected["grad"], b)


def test_original_peer_loss_has_peers_with_inputs_of_their_own():
    """Its two terms are ours, each of its own logits."""
    b = baseline("peer_loss_two_peers")
    labels, peers = torch.tensor(b.inputs.labels), torch.tensor(b.inputs.peer_labels)
    fitted = peer_loss(tensor(b.inputs.logits), labels, peers, beta=0.0)
    other = peer_loss(tensor(b.inputs.peer_logits), peers, peers, beta=0.0)
    check((fitted - b.inputs.alpha * other).mean(), b.expected["mean"], b)


def test_cores_of_a_uniform_distribution():
    b = baseline("cores_uniform")
    labels, prior = torch.tensor(b.inputs.labels), tensor(b.inputs.prior)
    value, gradient = differentiated(
        lambda z: cores_loss(z, labels, prior, beta=b.params.beta, prob_floor=0.0), tensor(b.inputs.logits)
    )
    check(value, b.expected["per_sample"], b)
    check(value.mean(), b.expected["mean"], b)
    check(gradient, b.expected["grad"], b)


def test_cores_ramp():
    b = baseline("cores_beta_schedule")
    check([ramped(2.0, epoch) for epoch in b.inputs.epochs], b.expected["beta"], b)
    assert [ramped(1.0, r, start=0, length=1) for r in (0, 1)] == [1, 1]


def test_the_peer_loss_is_linear_in_the_logits():
    v = vector("fedpeer.linear_in_logits")
    z, q = tensor([v.inputs["logits"]]), tensor(v.inputs["prior"])
    label, peer = torch.tensor([v.inputs["label"]]), torch.tensor([v.inputs["peer"]])
    assert peer_loss(z, label, peer, prob_floor=0.0).item() == v.approx("peer_loss")
    value, gradient = differentiated(lambda x: cores_loss(x, label, q, prob_floor=0.0), z)
    assert value.item() == v.approx("cores_loss")
    assert gradient[0].tolist() == v.approx("grad_logits_cores")


def test_the_floor_bounds_what_is_unbounded():
    v = vector("fedpeer.unbounded")
    for p_peer, expected in zip(v.inputs["p_peer"], v.expected["peer_loss"], strict=True):
        rest = 1 - v.inputs["p_label"] - p_peer
        z = tensor([[v.inputs["p_label"], p_peer, rest]]).log()
        label, peer = torch.tensor([0]), torch.tensor([1])
        assert peer_loss(z, label, peer, prob_floor=0.0).item() == v.near(expected)
        floored = -math.log(v.inputs["p_label"]) + math.log(p_peer + 1e-5)
        assert peer_loss(z, label, peer).item() == pytest.approx(floored, rel=1e-9)
    z = tensor([[60.0, -60.0]])
    assert peer_loss(z, torch.tensor([0]), torch.tensor([1])).item() == pytest.approx(math.log(1e-5))
    assert peer_loss(z, torch.tensor([0]), torch.tensor([1]), prob_floor=1e-8).item() == pytest.approx(-18.420681)


def test_the_floor_holds_the_logits():
    """Descent on one sample goes on at one pace without it, and all but stands still beyond a gap of 11.5 with it."""
    for floor in (0.0, 1e-5):
        z, gaps = torch.zeros(1, 2, dtype=torch.float64), []
        for _ in range(2000):
            _, gradient = differentiated(
                lambda x, f=floor: peer_loss(x, torch.tensor([0]), torch.tensor([1]), prob_floor=f), z
            )
            z = z - 0.5 * gradient
            gaps.append(float(z[0, 0] - z[0, 1]))
        if floor:
            assert 11.5 < gaps[-1] < 20
            assert gaps[-1] - gaps[999] < 1
        else:
            assert gaps[-1] - gaps[999] == pytest.approx(1000)


def test_cores_is_the_expected_peer_loss():
    v = vector("fedpeer.cores_equality")
    z, q = tensor([v.inputs["probs"]]).log(), v.inputs["prior"]
    label = torch.tensor([v.inputs["label"]])
    for options in ({}, {"prob_floor": 0.0}, {"prob_floor": 1e-2, "floor_terms": "both"}, {"beta": 0.3}):
        each = [peer_loss(z, label, torch.tensor([c]), **options).item() for c in range(3)]
        mean = sum(p * x for p, x in zip(q, each, strict=True))
        assert cores_loss(z, label, tensor(q), **options).item() == pytest.approx(mean, rel=1e-12)
    assert cores_loss(z, label, tensor(q), prob_floor=0.0).item() == v.approx("cores_loss")
    each = [peer_loss(z, label, torch.tensor([c]), prob_floor=0.0).item() for c in range(3)]
    assert sum(p * x for p, x in zip(q, each, strict=True)) == v.approx("expected_peer_loss")


@pytest.mark.parametrize("both", [True, False])
def test_peer_losses_by_loops(both: bool):
    rng = torch.Generator().manual_seed(0)
    z, q = torch.randn(6, 4, generator=rng, dtype=torch.float64), tensor([0.4, 0.3, 0.2, 0.1])
    labels, peers = torch.randint(4, (6,), generator=rng), torch.randint(4, (6,), generator=rng)
    beta, floor, terms = 0.7, 0.05, "both" if both else "subtracted"
    p = np.exp(z.numpy()) / np.exp(z.numpy()).sum(1, keepdims=True)
    fitted = [-math.log(p[i, labels[i]] + (floor if both else 0)) for i in range(6)]
    peer = [fitted[i] + beta * math.log(p[i, peers[i]] + floor) for i in range(6)]
    cores = [fitted[i] + beta * sum(q[c].item() * math.log(p[i, c] + floor) for c in range(4)) for i in range(6)]
    found = peer_loss(z, labels, peers, beta=beta, prob_floor=floor, floor_terms=terms)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.numpy(), peer, rtol=1e-12)
    found = cores_loss(z, labels, q, beta=beta, prob_floor=floor, floor_terms=terms)  # type: ignore[arg-type]
    np.testing.assert_allclose(found.numpy(), cores, rtol=1e-12)


def test_without_peers_it_is_cross_entropy_to_the_bit():
    rng = torch.Generator().manual_seed(0)
    z, labels, peers = torch.randn(9, 5, generator=rng), torch.arange(9) % 5, torch.arange(9) % 3
    value, gradient = differentiated(lambda x: peer_loss(x, labels, peers, beta=0.0), z)
    plain = differentiated(lambda x: torch.nn.functional.cross_entropy(x, labels, reduction="none"), z)
    assert torch.equal(value, plain[0])
    assert torch.equal(gradient, plain[1])
    value, gradient = differentiated(lambda x: cores_loss(x, labels, torch.full((5,), 0.2), beta=0.0), z)
    assert torch.equal(value, plain[0])
    assert torch.equal(gradient, plain[1])


def test_gradients_of_floored_losses():
    z = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64).requires_grad_()
    labels, peers, q = torch.tensor([0, 1, 3]), torch.tensor([3, 1, 2]), tensor([0.1, 0.2, 0.3, 0.4])
    assert torch.autograd.gradcheck(lambda x: peer_loss(x, labels, peers, prob_floor=0.01), (z,))
    assert torch.autograd.gradcheck(lambda x: cores_loss(x, labels, q, prob_floor=0.01, floor_terms="both"), (z,))
    extreme = torch.tensor([[300.0, -300.0, 0.0]])
    value, gradient = differentiated(lambda x: peer_loss(x, torch.tensor([0]), torch.tensor([1])), extreme)
    assert value.isfinite().all()
    assert gradient.isfinite().all()


def test_peer_losses_run_stacked():
    rng = torch.Generator().manual_seed(0)
    z, labels = torch.randn(3, 6, 4, generator=rng, dtype=torch.float64), torch.randint(4, (3, 6), generator=rng)
    q, u = torch.softmax(torch.randn(3, 4, generator=rng), 1), torch.rand(3, 6, generator=rng)
    peers = torch.vmap(peer_labels)(q, u)
    assert torch.equal(peers, torch.stack([peer_labels(a, b) for a, b in zip(q, u, strict=True)]))
    found = torch.vmap(peer_loss)(z, labels, peers), torch.vmap(cores_loss)(z, labels, q)
    for i in range(3):
        torch.testing.assert_close(found[0][i], peer_loss(z[i], labels[i], peers[i]))
        torch.testing.assert_close(found[1][i], cores_loss(z[i], labels[i], q[i]))


# -------------------------------------------------------------------------------------------------------- theorems


def test_proposition_1():
    """Logits -ℓ have losses ℓ up to a constant a sample, which the peer term takes away."""
    v = vector("fedpeer.prop1")
    z, share = -tensor(v.inputs["loss_table"]), np.array(v.inputs["pX"])
    first = np.array(v.inputs["P(Y=1|X)"])
    e1, e2 = v.inputs["e1"], v.inputs["e2"]
    found = {}
    for name, of_first in (("clean", first), ("noisy", first * (1 - e1) + (1 - first) * e2)):
        marginal = float(share @ of_first)
        q = tensor([marginal, 1 - marginal])
        losses = [cores_loss(z, torch.full((4,), c), q, prob_floor=0.0).numpy() for c in (0, 1)]
        found[name] = float(share @ (of_first * losses[0] + (1 - of_first) * losses[1]))
        assert found[name] == v.approx(name)
    assert found["noisy"] / found["clean"] == pytest.approx(v.expected["factor"], abs=1e-9)
    assert v.expected["factor"] == pytest.approx(1 - e1 - e2)


def trained(w: Tensor, x: Tensor, y: Tensor, q: Tensor, steps: int, floor: float) -> Tensor:
    """Full-batch descent of a linear model."""
    for _ in range(steps):
        w = w.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(cores_loss(x @ w, y, q, prob_floor=floor).mean(), w)
        w = w - 0.5 * gradient
    return w.detach()


@pytest.mark.parametrize(("steps", "floor", "same"), [(1, 0.0, True), (5, 0.0, True), (1, 0.1, True), (5, 0.1, False)])
def test_theorem_2(steps: int, floor: float, same: bool):
    """Clients weighted by samples are one learner: for one step always, for more where the gradient is constant."""
    v = vector("fedpeer.thm2")
    rng = np.random.default_rng(v.inputs["seed"])
    sizes, w = (5, 11, 20), torch.from_numpy(rng.normal(size=(4, 3)))
    q = torch.from_numpy(rng.dirichlet(np.ones(3)))
    data = [(torch.from_numpy(rng.normal(size=(n, 4))), torch.from_numpy(rng.integers(3, size=n))) for n in sizes]
    federated = sum(n / sum(sizes) * trained(w, x, y, q, steps, floor) for n, (x, y) in zip(sizes, data, strict=True))
    central = trained(w, torch.cat([x for x, _ in data]), torch.cat([y for _, y in data]), q, steps, floor)
    difference = float((federated - central).abs().max())
    if same:
        assert difference == v.near(v.expected[f"max_abs_diff_E{steps}"])
    else:
        assert difference > 1e-3


def test_the_server_goes_towards_the_clients():
    """θ + α_g Σ w_c (θ_c - θ): with α_g = 1 the mean of the clients; the sign as printed would leave them."""
    v = vector("fedpeer.server_update")
    clients, counts = np.array(v.inputs["f_c"]), np.array(v.inputs["N_c"])
    mean = float(counts @ clients / counts.sum())
    for rate, expected in zip(v.inputs["alpha_g"], v.expected["f_new"], strict=True):
        found = torch.lerp(tensor(v.inputs["f"]), tensor(mean), rate).item()
        assert found == v.near(expected)
        assert found != v.approx("printed_version_alpha1")


# ---------------------------------------------------------------------------------------------------------- openset


def test_a_transition_of_which_a_class_is_never_seen():
    """What a client without class 3 can learn of T, and where a corrected loss then sends the true class 3."""
    v = vector("fedpeer.openset_T")
    T, seen = np.array(v.inputs["T_real"]), np.array(v.inputs["observed"]) - 1
    true = np.arange(90_000) % 3
    noisy = transmit(true, T / T.sum(1, keepdims=True), np.random.default_rng(0))
    kept = np.isin(noisy, seen)
    counts = np.array([np.bincount(noisy[kept & (true == c)], minlength=3) for c in range(3)])
    estimate = counts / counts.sum(1, keepdims=True)
    np.testing.assert_allclose(estimate, v.expected["T_opt_est"], atol=0.02)
    exact = np.where(np.isin(np.arange(3), seen), T, 0)
    exact = exact / exact.sum(1, keepdims=True)
    assert exact.tolist() == [v.near(row) for row in v.expected["T_opt_est"]]
    assert (exact.T @ np.array(v.inputs["f"])).tolist() == v.approx("corrected")
