"""FLR's pseudo labels and regulariser: schedules, averages by loops, gradients against the paper's formula."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from flnl.data.noise.client import FLR
from flnl.methods.flr.pseudo_label import Schedule, mixture, regulariser, running_average
from flnl.parts.losses.targets import mixed_pair
from tests.toys import vector
from tests.vectors.baselines import baseline, check

PAPER = Schedule(alpha=0.9, beta=0.7, gamma=0.5, R=300, R_w=50)


def tensor(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def gradient(loss: Any, logits: Tensor) -> Tensor:
    logits = logits.clone().requires_grad_()
    (found,) = torch.autograd.grad(loss(logits), logits)
    return found


# -------------------------------------------------------------------------------------------------------- schedule


def test_schedules():
    v = vector("flr.schedule")
    schedule = Schedule(*(v.inputs[k] for k in ("alpha", "beta", "gamma", "R", "R_w")))
    assert schedule == PAPER
    for r, expected in zip(v.inputs["r"], v.expected["alpha_beta_gamma"], strict=True):
        found = schedule.at(r)
        assert [found.alpha, found.beta, found.gamma] == v.near(expected)


def test_schedules_at_the_end():
    b = baseline("flr_schedule")
    schedule = Schedule(0.9, 0.7, 0.5, b.inputs.R, b.inputs.R_w)
    for name in ("alpha", "beta", "gamma"):
        check([getattr(schedule.at(r), name) for r in b.inputs.rounds], b.expected[name], b)
    assert schedule.at(400) == schedule.at(300)


def test_an_odd_number_of_rounds_has_its_middle_between_two():
    assert [Schedule(0.9, 0.7, 0.5, 5, 0).at(r).beta for r in range(5)] == [0, 0, 0, 0.7, 0.7]


def test_what_the_warm_up_is():
    assert [PAPER.at(r).regularised for r in (0, 49, 50)] == [False, False, True]
    server = replace(PAPER, warmup="server_reg")
    assert [(server.at(r).regularised, server.at(r).alpha, server.at(r).beta) for r in (0, 49)] == [
        (True, 1.0, 0.0)
    ] * 2
    assert server.at(50) == PAPER.at(50)
    formulas = replace(PAPER, warmup="scheduled")
    assert formulas.at(49).regularised
    assert formulas.at(49).alpha == pytest.approx(0.147)
    assert formulas.at(49).gamma == 0
    assert all(replace(PAPER, R_w=0).at(r).regularised for r in range(3))


def test_constant_alpha():
    assert {replace(PAPER, alpha_schedule="constant").at(r).alpha for r in (0, 150, 299)} == {0.9}


def test_rows_of_table_1():
    rounds = (0, 60, 299)
    assert PAPER.labelled_by("vanilla") is None
    assert PAPER.labelled_by("mixture") is PAPER
    for kind, alpha in (("local_only", 0.0), ("global_only", 1.0)):
        found = PAPER.labelled_by(kind)  # type: ignore[arg-type]
        assert found is not None
        assert [found.at(r).alpha for r in rounds] == [alpha] * 3
        assert [found.at(r).gamma for r in rounds] == [PAPER.at(r).gamma for r in rounds]


def test_special_cases_and_what_they_keep():
    elr, slr, er = (PAPER.as_special(case) for case in ("elr", "slr", "er"))
    assert {(elr.at(r).alpha, slr.at(r).alpha, er.at(r).alpha) for r in (0, 100, 299)} == {(0.0, 1.0, 0.0)}
    assert (elr.at(100).gamma, er.at(100).gamma) == (0.5, 0.0)
    kept = {n: (s.uses_server, s.uses_client) for n, s in {"flr": PAPER, "elr": elr, "slr": slr, "er": er}.items()}
    assert kept == {"flr": (True, True), "elr": (False, True), "slr": (True, False), "er": (False, True)}
    assert replace(elr, warmup="server_reg").uses_server


# -------------------------------------------------------------------------------------------------------- averages


def test_running_averages_of_one_sample():
    v = vector("flr.running_average")
    s = m = torch.full((1, 3), math.nan, dtype=torch.float64)
    for visit, (server, local, expected) in enumerate(
        zip(v.inputs["p_server"], v.inputs["p_local"], v.expected["steps"], strict=True)
    ):
        first = torch.tensor([visit == 0])
        s = running_average(s, tensor([server]), v.inputs["beta"], first)
        m = running_average(m, tensor([local]), v.inputs["gamma"], first)
        t = mixture(s, m, v.inputs["alpha"])
        for name, found in (("s", s), ("m", m), ("t", t)):
            assert found[0].tolist() == v.near(expected[name])
            assert found.sum().item() == pytest.approx(1)


def test_averages_that_begin_at_zero_sum_to_less_than_one():
    p = tensor([[0.2, 0.7, 0.1]])
    kept = torch.full((1, 3), 9.0).double()
    once = running_average(kept, p, 0.5, torch.tensor([True]), init="zero")
    torch.testing.assert_close(once, 0.5 * p)
    twice = running_average(once, p, 0.5, torch.tensor([False]), init="zero")
    torch.testing.assert_close(twice, 0.75 * p)


def test_averages_of_a_batch_in_which_some_are_seen_first():
    kept, p = torch.softmax(normal(4, 3), 1), torch.softmax(normal(4, 3, seed=1), 1)
    first = torch.tensor([True, False, True, False])
    found = running_average(kept, p, 0.7, first)
    for i in range(4):
        expected = p[i] if first[i] else 0.7 * kept[i] + 0.3 * p[i]
        torch.testing.assert_close(found[i], expected)


def test_averages_carry_no_gradient():
    z = normal(2, 3).requires_grad_()
    found = running_average(torch.zeros(2, 3).double(), torch.softmax(z, 1), 0.5, torch.tensor([True, False]))
    assert not found.requires_grad


@given(st.lists(st.floats(0, 1), min_size=3, max_size=3), st.integers(0, 20))
def test_pseudo_labels_stay_on_the_simplex(coefficients: list[float], seed: int):
    alpha, beta, gamma = coefficients
    s = m = torch.zeros(2, 4, dtype=torch.float64)
    for visit in range(4):
        first = torch.full((2,), visit == 0)
        s = running_average(s, torch.softmax(3 * normal(2, 4, seed=seed + visit), 1), beta, first)
        m = running_average(m, torch.softmax(3 * normal(2, 4, seed=seed + 50 + visit), 1), gamma, first)
        t = mixture(s, m, alpha)
        assert (t >= 0).all()
        torch.testing.assert_close(t.sum(1), torch.ones(2).double())


# ------------------------------------------------------------------------------------------------------ regulariser


def test_loss_and_gradient():
    v = vector("flr.gradient")
    z, t, label = tensor([v.inputs["logits"]]), tensor([v.inputs["t"]]), torch.tensor([v.inputs["label"]])
    strength = v.inputs["lambda"]

    def loss(x: Tensor) -> Any:
        return (F.cross_entropy(x, label, reduction="none") + strength * regulariser(x, t)).sum()

    assert loss(z).item() == v.approx("loss")
    assert torch.softmax(z, 1)[0].tolist() == v.approx("p")
    assert math.exp(regulariser(z, t).item()) == v.near(1 - v.expected["inner"])
    assert gradient(lambda x: regulariser(x, t).sum(), z)[0].tolist() == v.approx("g")
    assert gradient(loss, z)[0].tolist() == v.approx("grad_logits")


def test_sign_of_the_gradient():
    v = vector("flr.gradient_sign_erratum")
    z, t = tensor([v.inputs["logits"]]), tensor([v.inputs["t"]])
    g = gradient(lambda x: regulariser(x, t).sum(), z)[0]
    assert g.tolist() == v.approx("g")
    assert g.tolist() != v.approx("wrong_eq5_second_line")
    assert (-g).tolist() == v.approx("wrong_eq5_second_line")
    assert g[t.argmax()] < 0
    assert g.sum().item() == v.approx("sum_g")


def test_gradient_of_the_baselines_and_the_printed_one():
    b = baseline("flr_reg_gradient_sign")
    z, t = tensor(b.inputs.logits), tensor(b.inputs.t)
    found = gradient(lambda x: regulariser(x, t).sum(), z)
    check(found, b.expected["grad_per_sample"], b)
    check(-found, b.expected["eq5_as_printed"], b)
    p, t_ = torch.softmax(z, 1).numpy(), t.numpy()
    for i in range(len(p)):
        inner = p[i] @ t_[i]
        for c in range(3):  # Eq. 2 as it stands
            expected = p[i, c] / (1 - inner) * sum((t_[i, r] - t_[i, c]) * p[i, r] for r in range(3))
            assert found[i, c].item() == pytest.approx(expected, abs=1e-12)


def test_er_with_and_without_a_gradient_through_its_label():
    v = vector("flr.special.er")
    z = tensor([v.inputs["logits"]])
    assert regulariser(z, torch.softmax(z, 1)).item() == v.approx("value")
    found = gradient(lambda x: regulariser(x, torch.softmax(x, 1)).sum(), z)[0]
    assert found.tolist() == v.approx("grad_stop")
    assert (2 * found).tolist() == v.approx("grad_full")
    assert found.tolist() != v.approx("grad_full")


def test_er_of_the_baselines():
    b = baseline("er_detached")
    z, labels = tensor(b.inputs.logits), torch.tensor(b.inputs.labels)

    def loss(x: Tensor) -> Any:
        return F.cross_entropy(x, labels) + b.params.strength * regulariser(x, torch.softmax(x, 1)).mean()

    check(loss(z), b.expected["mean"], b)
    check(gradient(loss, z), b.expected["grad"], b)
    check(gradient(lambda x: regulariser(x, torch.softmax(x, 1)).sum(), z), b.expected["reg_grad_per_sample"], b)
    with pytest.raises(AssertionError):
        check(gradient(loss, z), b.deviation["not_detached_grad"], b)


def test_slr_of_the_baselines():
    b = baseline("slr")
    z, labels, s = tensor(b.inputs.logits), torch.tensor(b.inputs.labels), tensor(b.inputs.s)
    alpha = PAPER.as_special("slr").at(100).alpha
    t = mixture(s, torch.softmax(normal(4, 3), 1), alpha)  # whatever m is

    def loss(x: Tensor) -> Any:
        return F.cross_entropy(x, labels) + b.params.strength * regulariser(x, t).mean()

    check(loss(z), b.expected["mean"], b)
    check(gradient(loss, z), b.expected["grad"], b)


def test_two_local_steps():
    b = baseline("flr_two_steps")
    labels, first = torch.tensor(b.inputs.labels), torch.ones(4, dtype=torch.bool)
    s = m = torch.zeros(4, 3, dtype=torch.float64)
    for name in ("step1", "step2"):
        inputs, expected = getattr(b.inputs, name), b.expected[name]
        z = tensor(inputs["local_logits"])
        s = running_average(s, torch.softmax(tensor(inputs["server_logits"]), 1), b.params.beta, first)
        m = running_average(m, torch.softmax(z, 1), b.params.gamma, first)
        t = mixture(s, m, b.params.alpha)
        first = torch.zeros_like(first)
        for found, key in ((s, "s"), (m, "m"), (t, "t")):
            check(found, expected[key], b)

        def loss(x: Tensor, t: Tensor = t) -> Any:
            return F.cross_entropy(x, labels) + b.params.strength * regulariser(x, t).mean()

        check(loss(z), expected["loss"], b)
        check(gradient(loss, z), expected["grad"], b)


# ----------------------------------------------------------------------------------------------------------- clamps


def test_clamps_agree_on_a_saturated_label():
    v = vector("flr.clamp")
    z = tensor([[60.0, 0.0]])
    for clamp in ("inner", "normalised"):
        assert regulariser(z, tensor([[1.0, 0.0]]), clamp=clamp).item() == v.approx("reg")
    p = v.inputs["p"][0]
    z = tensor([[math.log(p), math.log(1 - p)]])
    assert regulariser(z, tensor([[1.0, 0.0]])).item() == v.approx("reg")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_saturation_is_finite_and_flat(dtype: torch.dtype):
    b = baseline("flr_log_saturation")
    z, t = torch.tensor(b.inputs.logits, dtype=dtype), torch.tensor(b.inputs.t, dtype=dtype)
    check(regulariser(z, t), [b.expected["reg_clamped"]], b)
    check(gradient(lambda x: regulariser(x, t).sum(), z), b.expected["grad_clamped"], b)
    if dtype == torch.float64:
        z = tensor(b.inputs.logits_unsaturated)
        check(regulariser(z, t), [b.expected["reg_unsaturated"]], b)
        check(gradient(lambda x: regulariser(x, t).sum(), z), b.expected["grad_unsaturated"], b)
    assert b.deviation["naive_float32_value"] == "-inf"


def test_elr_clamps_each_probability():
    z, t = tensor([[20.0, 0.0, 0.0]]), tensor([[0.2, 0.5, 0.3]])
    p = torch.softmax(z, 1)[0].clamp(1e-4, 1 - 1e-4)
    assert regulariser(z, t, clamp="normalised").item() == pytest.approx(math.log(1 - float(p @ t[0])), rel=1e-12)
    free = torch.softmax(z, 1)[0]
    assert regulariser(z, t).item() == pytest.approx(math.log(1 - float(free @ t[0])), rel=1e-12)


# ------------------------------------------------------------------------------------------------------------- FLR+


def test_label_of_a_mixed_pair():
    t = torch.softmax(normal(4, 3), 1)
    other = t[[2, 0, 3, 1]]
    share = tensor([0.1, 0.9, 0.5, 1.0])
    for one in (0.3, tensor(0.3)):
        found = mixed_pair(t, other, one)
        for i in range(4):
            torch.testing.assert_close(found[i], 0.3 * t[i] + 0.7 * other[i])
    each = mixed_pair(t, other, share)
    for i in range(4):
        torch.testing.assert_close(each[i], share[i] * t[i] + (1 - share[i]) * other[i])
    assert torch.equal(mixed_pair(t, other, 1.0), t)


def test_mixture_and_regulariser_run_stacked():
    z, s, m = normal(3, 5, 4), torch.softmax(normal(3, 5, 4, seed=1), 2), torch.softmax(normal(3, 5, 4, seed=2), 2)
    first, alpha = torch.arange(15).reshape(3, 5) % 2 == 0, tensor([0.0, 0.5, 1.0])

    def one(z: Tensor, s: Tensor, m: Tensor, first: Tensor, alpha: Tensor) -> Tensor:
        m = running_average(m, torch.softmax(z, 1), 0.5, first)
        return regulariser(z, mixed_pair(mixture(s, m, alpha), s, alpha))

    found = torch.vmap(one)(z, s, m, first, alpha)
    for i in range(3):
        torch.testing.assert_close(found[i], one(z[i], s[i], m[i], first[i], alpha[i]))


# ------------------------------------------------------------------------------------------------------------ noise


def test_rate_of_asymmetric_noise():
    """A tau as a lower bound would flip more than half of what can be flipped at rho = 0.8."""
    v = vector("flr.asym_rate")
    for kind, name in (("uniform", "uniform_tau_to_1"), ("fixed", "fixed_tau")):
        for rho, expected in zip(v.inputs["rho"], v.expected[name], strict=True):
            rates = FLR(rho, v.inputs["tau"], "asymmetric", kind, "auto").rates(4000, 1)  # type: ignore[arg-type]
            tolerance = 1e-9 if kind == "fixed" else 4 * 0.2 / math.sqrt(4000)
            assert np.mean(rates) == pytest.approx(expected, abs=tolerance)
