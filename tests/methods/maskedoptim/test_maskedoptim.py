"""MaskedOptim: its loss, labels, uploads and median against the vectors and by hand, and rounds of a run."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.config import compose
from flnl.core.messages import ClientResult, ClientState
from flnl.core.payload import Params, Payload
from flnl.core.step import Step
from flnl.methods.fedelc.labels import LearnedLabels
from flnl.methods.fedelc.loss import FedELC, Visit
from flnl.methods.maskedoptim.aggregator import DrawnBackMedian, drawn_back
from flnl.parts.messages import ClientTag, ClientTags
from tests.properties.runs import assembled, difference
from tests.registry import TINY
from tests.toys import step
from tests.vectors.vectors import Entry, federated, field

TERM = FedELC(alpha=0.5, beta=0.1, scale=10.0, label_lr=1000.0, label_batch=None, compatible=0.8)
MEDIAN = DrawnBackMedian(
    weights="uniform",
    iterations=10,
    smoothing=1e-5,
    tolerance=0.0,
    start="mean",
    over="tensor",
    largest=None,
    received=0.2,
)


def f64(values: Any) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def graded(term: FedELC, made: Step, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The losses [B], the gradient of their mean by the logits, and ỹ afterwards."""
    logits = made.inputs.clone().requires_grad_()
    state = Visit(torch.zeros(values.shape[1], dtype=values.dtype), LearnedLabels(values, values.argmax(1)))
    loss, after = term(replace(made, computed={"logits": logits}), state)
    (gradient,) = torch.autograd.grad(loss.mean(), logits)
    assert after.labels is not None
    return loss.detach(), gradient, after.labels.values


def at(logits: Tensor, labels: Tensor) -> Step:
    """A step of a noisy client."""
    return replace(step(logits=logits, targets=labels, extras=Payload(ClientTag(noisy=True))), labels=labels)


def of_vector(entry: Entry) -> tuple[Tensor, Tensor, Tensor]:
    return f64(entry.inputs["logits"]), f64(entry.inputs["y_tilde"]), torch.tensor(entry.inputs["labels"])


# -------------------------------------------------------------------------------------------------------- vectors


def test_the_loss() -> None:
    entry = federated("maskedoptim.loss")
    logits, values, labels = of_vector(entry)
    losses = F.cross_entropy(logits, labels, reduction="none")
    assert losses.tolist() == entry.approx("per_sample_ce")
    term = replace(TERM, alpha=entry.inputs["alpha"], beta=entry.inputs["beta"])
    assert float(graded(term, at(logits, labels), values)[0].mean()) == entry.approx("loss")


def test_a_step_of_the_network_and_of_the_labels() -> None:
    entry = field("maskedoptim.step")
    logits, values, labels = of_vector(entry)
    term = replace(TERM, alpha=entry.inputs["alpha"], beta=entry.inputs["beta"], label_lr=entry.inputs["lam"])
    loss, gradient, after = graded(term, at(logits, labels), values)
    assert float(loss.mean()) == entry.approx("loss")
    np.testing.assert_allclose(gradient, entry.expected["grad_logits"], atol=entry.absolute)
    np.testing.assert_allclose((values - after) / 1000, entry.expected["grad_y_tilde"], atol=entry.absolute)
    np.testing.assert_allclose(after, entry.expected["y_tilde_after_epoch"], atol=1000 * entry.absolute)


def test_the_merge_after_a_visit() -> None:
    entry = field("maskedoptim.merge")
    labels = LearnedLabels(f64(entry.inputs["y_tilde"]), torch.tensor([1, 1]))
    merged = labels.merged(f64(entry.inputs["p_local"]), entry.inputs["K"])
    np.testing.assert_allclose(merged.values, entry.expected["y_tilde"], atol=entry.absolute)
    assert merged.classes.tolist() == entry.expected["label"]


def combined(models: list[Params], noisy: list[bool], received: Params) -> Params:
    known = Payload(ClientTags(torch.tensor(noisy)))
    sent = [ClientResult(k, 5 + k, m, ClientState(), Payload(), 0.0, 1, finite=True) for k, m in enumerate(models)]
    blocks = [MEDIAN.block(received, part, known) for part in (sent[:3], sent[3:])]
    return MEDIAN.combine(received, blocks, known).params


def test_each_tensor_has_a_median_of_its_own() -> None:
    entry = field("maskedoptim.aggregate")
    names = ("tensor1", "tensor2")
    models: list[Params] = [{name: f64(entry.inputs[name][k]) for name in names} for k in range(4)]
    start = {name: torch.zeros_like(models[0][name]) for name in names}
    found = combined(models, [False] * 4, start)
    for name in names:
        np.testing.assert_allclose(found[name], entry.expected[name], atol=entry.absolute)


def test_noisy_clients_come_only_part_of_the_way() -> None:
    """θ_t = 1 and θ_k = 2: 0.2 · 1 + 0.8 · 2 = 1.8; one client alone is its own median, and integers do not move."""
    received = {"w": f64([1.0]), "bn.running_mean": f64([0.0]), "bn.num_batches_tracked": torch.tensor(3)}
    trained = {"w": f64([2.0]), "bn.running_mean": f64([5.0]), "bn.num_batches_tracked": torch.tensor(9)}
    for noisy, w, mean in ((True, 1.8, 4.0), (False, 2.0, 5.0)):
        found = combined([trained], [noisy], received)
        assert [float(found["w"]), float(found["bn.running_mean"])] == pytest.approx([w, mean])
        assert found["bn.num_batches_tracked"] == 9
    half = drawn_back(received, {name: t.float() if t.is_floating_point() else t for name, t in trained.items()}, 0.5)
    assert half["w"].dtype == torch.float32
    assert float(half["w"]) == 1.5


# ------------------------------------------------------------------------------------------------------- the mask


def test_the_mask_is_of_the_batchs_smallest_losses() -> None:
    """The whole objective by autograd, with the mask by hand; without it, it is FedELC's."""
    logits, values = normal(7, 3).requires_grad_(), (3 * normal(7, 3, seed=1)).requires_grad_()
    labels, p, B = torch.arange(7) % 3, logits.softmax(1), 7
    order = sorted(range(B), key=lambda i: float(F.cross_entropy(logits[i : i + 1].detach(), labels[i : i + 1])))
    mask = f64([float(i in order[:5]) for i in range(B)])  # floor(0.8 · 7)
    kl = F.kl_div(values.log_softmax(1), p, reduction="sum") / B / 3
    wanted = kl + 0.5 * (mask * F.cross_entropy(values, labels, reduction="none")).sum() / B
    wanted = wanted - 0.1 * (p * p.log()).sum() / B / 3
    by_logits, by_values = torch.autograd.grad(wanted, [logits, values])
    loss, gradient, after = graded(TERM, at(logits.detach(), labels), values.detach())
    torch.testing.assert_close(loss.mean(), wanted.detach(), rtol=1e-12, atol=0)
    torch.testing.assert_close(gradient, by_logits, rtol=1e-10, atol=1e-14)
    torch.testing.assert_close(after, (values - 1000 * by_values).detach(), rtol=1e-10, atol=1e-10)
    whole = graded(replace(TERM, compatible=1.0), at(logits.detach(), labels), values.detach())
    assert bool((whole[2] != after).any(1)[mask == 0].all())
    assert torch.equal(whole[2][mask == 1], after[mask == 1])


def test_samples_without_weight_are_no_candidates() -> None:
    logits, values, labels = normal(4, 3), 3 * normal(4, 3, seed=1), torch.tensor([0, 1, 2, 0])
    made = replace(at(logits, labels), weight=f64([0.0, 1.0, 1.0, 0.0]))
    half = replace(TERM, compatible=0.5)
    loss = graded(half, made, values)[0]
    plain = graded(replace(half, alpha=0.0), made, values)[0]
    best = min((1, 2), key=lambda i: float(F.cross_entropy(logits[i : i + 1], labels[i : i + 1])))
    assert (loss != plain).nonzero()[:, 0].tolist() == [best]


# ---------------------------------------------------------------------------------------------------------- a run

RUN = (
    *(w for w in TINY if "fraction" not in w),
    *("fraction=1.0", "precision=64", "method=maskedoptim", "method.s1=2", "method.T=2", "noise=fedcorr"),
    "noise.rho=0.5",
)


def test_with_fedelcs_values_and_mean_it_is_fedelc(tmp_path: Path) -> None:
    same = ("method.beta=0.2", "method.compatible=1", "method/aggregator=fednoro_distance_aware")
    other = [w.replace("maskedoptim", "fedelc") for w in RUN]
    with assembled([*RUN, *same], tmp_path / "a") as ours, assembled(other, tmp_path / "b") as theirs:
        pairs = list(zip(ours.results(), theirs.results(), strict=True))
    for a, b in pairs:
        assert difference(a.state.server.params, b.state.server.params) is None


def test_the_defaults_of_its_own_program() -> None:
    plain = compose.resolved(compose.load(["method=maskedoptim"]))["method"]
    values = {"alpha": 0.5, "beta": 0.1, "scale": 10.0, "label_lr": 1000.0, "compatible": 0.8, "received": 0.2}
    assert {key: plain[key] for key in values} == values
    assert (plain["aggregator"]["weights"], plain["aggregator"]["over"], plain["iterations"]) == (
        "uniform",
        "tensor",
        10,
    )
