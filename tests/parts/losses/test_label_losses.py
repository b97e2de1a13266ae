"""Losses against wrong labels: the vectors, the definitions in numpy, soft targets, their ends and their gradients."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from flnl.config import compose
from flnl.core.messages import Broadcast
from flnl.core.parts import LossTerm
from flnl.core.step import Mixing, Step
from flnl.parts.losses.cross_entropy import CrossEntropy
from flnl.parts.losses.entropy_minimization import EntropyMinimization
from flnl.parts.losses.generalized_cross_entropy import GeneralizedCrossEntropy, TruncatedByVisit
from flnl.parts.losses.label_smoothing import LabelSmoothing
from flnl.parts.losses.symmetric_cross_entropy import SymmetricCrossEntropy
from flnl.parts.losses.targets import of_labels
from flnl.parts.losses.temperature_scaling import TemperatureScaling
from tests.toys import mlp, network, random_federation, step, task
from tests.vectors.vectors import label_noise

A = math.log(1e-4)


def at(round: int, batch: Step) -> Step:
    """The batch in another round."""
    return replace(batch, broadcast=Broadcast(round, 1, {}))


def evaluated(terms: list[LossTerm], logits: Tensor, targets: Tensor, round: int = 0) -> tuple[Tensor, Tensor]:
    """The per-sample losses [B] of a sum of terms, and the gradient of their mean."""
    logits = logits.clone().requires_grad_()
    losses = torch.stack([term(at(round, step(logits=logits, targets=targets)), None)[0] for term in terms])
    assert losses.shape == (len(terms), len(logits))
    total = losses.sum(0)
    total.mean().backward()
    assert logits.grad is not None
    return total.detach(), logits.grad


def minimised(weight: float) -> list[LossTerm]:
    return [CrossEntropy(), EntropyMinimization(weight, 0)]


# --------------------------------------------------------------------------------------------------------- vectors

VECTORS: dict[str, list[LossTerm]] = {
    "ls_r0.1": [LabelSmoothing(0.1, 0)],
    "nls_r-1": [LabelSmoothing(-1.0, 0)],
    "nls_unbounded": [LabelSmoothing(-0.05, 0)],
    "em_lambda4": minimised(4.0),
    "em_saturated": minimised(4.0),
    "ts_multiply4": [TemperatureScaling(4.0, "multiply")],
    "gce_q0.7": [GeneralizedCrossEntropy(0.7, 0.0, 0)],
    "gce_q1.0": [GeneralizedCrossEntropy(1.0, 0.0, 0)],
    "gce_q1e-06": [GeneralizedCrossEntropy(1e-6, 0.0, 0)],
    "ce_mean": [CrossEntropy()],
    "ce_saturated": [CrossEntropy()],
}


def inputs(name: str, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    v = label_noise(name)
    return torch.tensor(v.inputs["logits"], dtype=dtype), torch.tensor(v.inputs["labels"])


@pytest.mark.parametrize("name", VECTORS)
def test_vector(name: str):
    v = label_noise(name)
    losses, gradient = evaluated(VECTORS[name], *inputs(name))
    assert losses.mean().item() == v.approx("mean")
    if "per_sample" in v.expected:
        assert losses.tolist() == v.approx("per_sample")
    for found, wanted in zip(gradient.tolist(), v.expected["grad"], strict=True):
        assert found == v.near(wanted)


def test_vector_of_the_entropy():
    v = label_noise("em_lambda4")
    logits, labels = inputs("em_lambda4")
    losses, _ = evaluated([EntropyMinimization(1.0, 0)], logits, labels)
    assert losses.tolist() == v.approx("entropy")


def test_negative_smoothing_is_not_what_torch_makes_of_it():
    """``F.cross_entropy(label_smoothing=-0.05)`` is plain cross-entropy, and says nothing."""
    v = label_noise("nls_torch_silent_noop")
    losses, _ = evaluated([LabelSmoothing(v.inputs["label_smoothing"], 0)], *inputs("nls_torch_silent_noop"))
    assert losses.mean().item() == v.approx("correct_nls")
    assert losses.mean().item() != v.approx("torch_returns")
    assert losses.mean().item() != v.approx("plain_ce")


def test_vector_of_the_limits_of_generalised_cross_entropy():
    v = label_noise("gce_limits")
    logits, labels = inputs("gce_limits")
    near_zero, one = (evaluated([GeneralizedCrossEntropy(q, 0.0, 0)], logits, labels)[0].mean() for q in (1e-6, 1.0))
    assert near_zero.item() == v.approx("gce_q1e_6")
    assert near_zero.item() == v.approx("ce")
    assert one.item() == v.approx("gce_q1")
    assert one.item() == v.approx("one_minus_py_mean")
    assert 2 * one.item() == v.approx("mae_sum_mean")


@pytest.mark.parametrize("name", ["gce_truncated_q0.7_k0.5", "gce_truncated_q0.7_k0.1"])
def test_vector_of_the_truncated_form(name: str):
    """The vector has it less the constant L_q(κ)."""
    v = label_noise(name)
    logits, labels = inputs(name)
    term = GeneralizedCrossEntropy(v.params["q"], v.params["k"], 3)
    constant = v.expected["Lq_k"]
    before, _ = evaluated([term], logits, labels, round=2)
    assert before.mean().item() - constant == v.approx("loss_before_prune")
    after, gradient = evaluated([term], logits, labels, round=3)
    assert after.mean().item() - constant == v.approx("loss_after_prune")
    assert (after - constant)[torch.tensor(v.expected["weights"]) == 0].tolist() == v.near(
        [0.0] * v.expected["weights"].count(0)
    )
    for found, wanted in zip(gradient.tolist(), v.expected["grad_after_prune"], strict=True):
        assert found == v.near(wanted)


BY_VISIT = TruncatedByVisit(q=0.7, kappa=0.3, start=3, least=2)


def test_by_visit_the_received_model_chooses_in_eval_mode():
    """With dropout, training mode would choose others; the guard keeps all where a batch would not be filled."""
    module = mlp(4, 3, dropout=0.5)
    samples = random_federation([40]).samples(0)
    net, work = network(module), task(module, samples, round=3)
    believed = torch.softmax(module.eval()(samples.read().double()), 1)[torch.arange(40), samples.given]
    kept = BY_VISIT.begin(net, work, None)
    assert torch.equal(kept, believed > 0.3)
    assert 2 <= int(kept.sum()) < 40
    assert replace(BY_VISIT, least=int(kept.sum())).begin(net, work, None).tolist() == kept.tolist()
    assert replace(BY_VISIT, least=int(kept.sum()) + 1).begin(net, work, None).all()
    assert BY_VISIT.begin(net, task(module, samples, round=2), None).all(), "before start"


def test_by_visit_a_sample_counts_or_not_whatever_the_network_says_now():
    logits, labels, _ = batch()
    kept = torch.arange(12) % 3 > 0
    losses, _ = BY_VISIT(replace(step(logits=logits, targets=labels), labels=labels), kept)
    p = torch.softmax(logits, 1)[torch.arange(12), labels]
    expected = torch.where(kept, (1 - p**0.7) / 0.7, (1 - 0.3**0.7) / 0.7)
    torch.testing.assert_close(losses, expected, rtol=1e-12, atol=0)
    partner = torch.arange(12).flip(0)
    soft = 0.3 * F.one_hot(labels, 5).double() + 0.7 * F.one_hot(labels[partner], 5).double()
    mixed = replace(step(logits=logits, targets=soft), labels=labels, mixing=Mixing(0.3, partner))
    other = torch.where(
        kept[partner],
        (1 - torch.softmax(logits, 1)[torch.arange(12), labels[partner]] ** 0.7) / 0.7,
        (1 - 0.3**0.7) / 0.7,
    )
    torch.testing.assert_close(BY_VISIT(mixed, kept)[0], 0.3 * expected + 0.7 * other, rtol=1e-12, atol=0)


def test_truncation_from_the_start_would_be_dead():
    """With FLR's values on CIFAR-100 nothing is believed at first; before ``start`` there are gradients."""
    v = label_noise("gce_truncated_dead_at_init")
    rows, columns = np.meshgrid(np.arange(3), np.arange(100), indexing="ij")
    logits = torch.from_numpy(0.01 * np.sin(rows * columns + columns))
    labels = torch.tensor(v.inputs["labels"])
    believed = torch.softmax(logits, 1)[torch.arange(3), labels]
    assert believed.tolist() == v.approx("p_y")
    term = GeneralizedCrossEntropy(v.inputs["q"], v.inputs["kappa"], 50)
    assert evaluated([term], logits, labels, round=50)[1].norm().item() == v.expected["grad_norm"]
    assert evaluated([term], logits, labels, round=49)[1].norm().item() > 0.1


def test_vector_of_underflow():
    """A power of the softmax has the gradient inf · 0 here."""
    v = label_noise("gce_underflow")
    losses, gradient = evaluated([GeneralizedCrossEntropy(0.7, 0.0, 0)], *inputs("gce_underflow", torch.float32))
    assert losses.item() == v.approx("value")
    assert gradient[0].tolist() == v.near(v.expected["grad"][0])


@pytest.mark.parametrize("key", ["A_ln1e_4", "A_minus4"])
def test_vector_of_symmetric_cross_entropy(key: str):
    v = label_noise("sce_a0.1_b1.0")
    found = v.expected[key]
    logits, labels = inputs("sce_a0.1_b1.0")
    losses, gradient = evaluated([SymmetricCrossEntropy(0.1, 1.0, found["A"])], logits, labels)
    assert losses.mean().item() == v.near(found["mean"])
    for ours, wanted in zip(gradient.tolist(), found["grad"], strict=True):
        assert ours == v.near(wanted)
    reverse, _ = evaluated([SymmetricCrossEntropy(0.0, 1.0, A)], logits, labels)
    assert reverse.tolist() == v.approx("rce_per_sample_A_ln1e_4")


@pytest.mark.parametrize(
    ("words", "alpha", "beta"),
    [
        ("dataset=digits", 0.1, 1.0),
        ("dataset=mnist", 0.01, 1.0),
        ("dataset=cifar10", 0.1, 1.0),
        ("dataset=cifar100", 6.0, 0.1),
        ("experiment=comparison/mnist_iid", 0.01, 1.0),
        ("experiment=comparison/mnist_noniid", 0.01, 1.0),
        ("experiment=comparison/mnist_dirichlet", 0.01, 1.0),
        ("experiment=comparison/mnist_openset", 0.01, 1.0),
        ("experiment=flr/cifar100_iid", 6.0, 0.1),
        ("experiment=flr/cifar100_iid_asymmetric", 6.0, 0.1),
        ("experiment=fedpeer/cifar100_symmetric", 6.0, 0.1),
        ("experiment=fedes/cifar100_iid", 0.1, 1.0),
    ],
)
def test_symmetric_cross_entropy_has_the_constants_of_the_data_set(words: str, alpha: float, beta: float):
    """Those of Wang et al.'s program; FedES has one pair for all data."""
    term = compose.load([words, "method/local=[symmetric_cross_entropy]"]).method.local.symmetric_cross_entropy
    assert (term.alpha, term.beta) == (alpha, beta)


def test_vector_of_mixup():
    v = label_noise("mixup")
    partner, share = torch.tensor(v.inputs["perm"]), v.inputs["lambda"]
    pixels = torch.tensor(v.inputs["x"], dtype=torch.float64)
    mixing, labels = Mixing(share, partner), torch.tensor(v.inputs["labels"])
    mixed, targets = mixing.rows(pixels), mixing.targets(labels, 3, pixels.dtype)
    for rows, name in ((mixed, "mixed_x"), (targets, "mixed_targets")):
        for found, wanted in zip(rows.tolist(), v.expected[name], strict=True):
            assert found == v.near(wanted)
    losses, gradient = evaluated([CrossEntropy()], torch.tensor(v.inputs["logits_of_mixed"]).double(), targets)
    assert losses.mean().item() == v.approx("mean")
    for found, wanted in zip(gradient.tolist(), v.expected["grad"], strict=True):
        assert found == v.near(wanted)


# ----------------------------------------------------------------------------------------------------- definitions

Rows = NDArray[np.float64]


def softmax(logits: Rows) -> Rows:
    raised = np.exp(logits - logits.max(1, keepdims=True))
    return np.asarray(raised / raised.sum(1, keepdims=True))


def smoothed(r: float) -> Callable[[Rows, int], Rows]:
    """Cross-entropy towards the smoothed target itself."""

    def loss(logits: Rows, label: int) -> Rows:
        target = (1 - r) * np.eye(logits.shape[1])[label] + r / logits.shape[1]
        return np.asarray(-(target * np.log(softmax(logits))).sum(1))

    return loss


def generalised(q: float, kappa: float = 0.0) -> Callable[[Rows, int], Rows]:
    """By its definition; what is at most κ costs what κ costs."""

    def loss(logits: Rows, label: int) -> Rows:
        return np.asarray([(1 - (p if p > kappa else kappa) ** q) / q for p in softmax(logits)[:, label]])

    return loss


def symmetric(alpha: float, beta: float, log_zero: float) -> Callable[[Rows, int], Rows]:
    """Both cross-entropies as sums over classes."""

    def loss(logits: Rows, label: int) -> Rows:
        p = softmax(logits)
        logs = np.where(np.arange(logits.shape[1]) == label, 0.0, log_zero)
        return np.asarray(-alpha * np.log(p[:, label]) - beta * (p * logs).sum(1))

    return loss


def tempered(scale: float) -> Callable[[Rows, int], Rows]:
    return lambda logits, label: np.asarray(-np.log(softmax(scale * logits)[:, label]))


def entropy(weight: float) -> Callable[[Rows, int], Rows]:
    return lambda logits, label: np.asarray(-weight * (softmax(logits) * np.log(softmax(logits))).sum(1))


DEFINED: dict[str, tuple[LossTerm, Callable[[Rows, int], Rows]]] = {
    "smoothing": (LabelSmoothing(0.1, 0), smoothed(0.1)),
    "negative smoothing": (LabelSmoothing(-0.05, 0), smoothed(-0.05)),
    "smoothing all": (LabelSmoothing(1.0, 0), smoothed(1.0)),
    "divided by a temperature": (TemperatureScaling(4.0, "divide"), tempered(1 / 4)),
    "multiplied by it": (TemperatureScaling(4.0, "multiply"), tempered(4.0)),
    "entropy": (EntropyMinimization(4.0, 0), entropy(4.0)),
    "generalised": (GeneralizedCrossEntropy(0.7, 0.0, 0), generalised(0.7)),
    "truncated": (GeneralizedCrossEntropy(0.7, 0.3, 0), generalised(0.7, 0.3)),
    "truncated as on CIFAR-100": (GeneralizedCrossEntropy(0.1, 0.3, 0), generalised(0.1, 0.3)),
    "symmetric": (SymmetricCrossEntropy(0.1, 1.0, A), symmetric(0.1, 1.0, A)),
    "symmetric as on CIFAR-100": (SymmetricCrossEntropy(6.0, 0.1, -4.0), symmetric(6.0, 0.1, -4.0)),
}


def batch(rows: int = 12, classes: int = 5) -> tuple[Tensor, Tensor, Tensor]:
    """Logits, labels and other labels."""
    rng = torch.Generator().manual_seed(3)
    logits = 2 * torch.randn(rows, classes, generator=rng, dtype=torch.float64)
    labels, others = torch.randint(0, classes, (2, rows), generator=rng)
    return logits, labels, others


@pytest.mark.parametrize("name", DEFINED)
def test_loss_of_labels(name: str):
    term, loss = DEFINED[name]
    logits, labels, _ = batch()
    wanted = [loss(row[None], int(label))[0] for row, label in zip(logits.numpy(), labels, strict=True)]
    np.testing.assert_allclose(evaluated([term], logits, labels)[0].numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("name", DEFINED)
def test_loss_of_a_mixed_batch_is_the_mixture_of_both(name: str):
    """Also where the loss is not linear in its label, as the generalised one."""
    term, loss = DEFINED[name]
    logits, labels, others = batch()
    soft = 0.3 * F.one_hot(labels, 5).double() + 0.7 * F.one_hot(others, 5).double()
    rows = logits.numpy()
    wanted = [
        0.3 * loss(rows[i : i + 1], int(a))[0] + 0.7 * loss(rows[i : i + 1], int(b))[0]
        for i, (a, b) in enumerate(zip(labels, others, strict=True))
    ]
    np.testing.assert_allclose(evaluated([term], logits, soft)[0].numpy(), wanted, rtol=1e-12)


@pytest.mark.parametrize("name", DEFINED)
def test_hard_and_soft_targets_of_one_label_agree(name: str):
    term, _ = DEFINED[name]
    logits, labels, _ = batch()
    hard, soft = (evaluated([term], logits, t) for t in (labels, F.one_hot(labels, 5).double()))
    torch.testing.assert_close(hard, soft, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("name", DEFINED)
def test_gradients_are_those_of_finite_differences_and_sum_to_zero(name: str):
    """A softmax does not see a constant added to all logits."""
    term, _ = DEFINED[name]
    logits, labels, _ = batch(6)
    _, gradient = evaluated([term], logits, labels)
    np.testing.assert_allclose(gradient.sum(1).numpy(), 0, atol=1e-14)
    for i, j in ((0, 0), (1, 3), (4, 2), (5, 4)):
        moved = []
        for sign in (1, -1):
            other = logits.clone()
            other[i, j] += sign * 1e-5
            moved.append(evaluated([term], other, labels)[0].mean().item())
        assert gradient[i, j].item() == pytest.approx((moved[0] - moved[1]) / 2e-5, abs=1e-9)


@pytest.mark.parametrize("name", DEFINED)
@pytest.mark.parametrize("gap", [100.0, 1000.0, -1000.0])
def test_saturated_logits_are_finite_in_single_precision(name: str, gap: float):
    term, _ = DEFINED[name]
    logits = torch.tensor([[gap, 0.0, 0.0, 0.0, 0.0], [0.0, gap, 0.0, 0.0, -gap]])
    for targets in (torch.tensor([1, 1]), torch.tensor([[0.5, 0.5, 0, 0, 0], [0, 0, 0, 0.2, 0.8]])):
        losses, gradient = evaluated([term], logits, targets)
        assert losses.isfinite().all()
        assert gradient.isfinite().all()


NEUTRAL: dict[str, LossTerm] = {
    "smoothing": LabelSmoothing(0.0, 0),
    "smoothing later": LabelSmoothing(0.3, 8),
    "temperature": TemperatureScaling(1.0, "divide"),
    "factor": TemperatureScaling(1.0, "multiply"),
    "symmetric": SymmetricCrossEntropy(1.0, 0.0, A),
}


@pytest.mark.parametrize("name", NEUTRAL)
@pytest.mark.parametrize("soft", [False, True])
def test_neutral_it_is_cross_entropy_to_the_bit(name: str, soft: bool):
    logits, labels, others = batch()
    targets = 0.5 * (F.one_hot(labels, 5) + F.one_hot(others, 5)).double() if soft else labels
    ours, plain = (evaluated([term], logits, targets, round=7) for term in (NEUTRAL[name], CrossEntropy()))
    assert torch.equal(ours[0], plain[0])
    assert torch.equal(ours[1], plain[1])


@pytest.mark.parametrize("term", [EntropyMinimization(0.0, 0), EntropyMinimization(4.0, 8)])
def test_no_entropy_adds_nothing(term: LossTerm):
    logits, labels, _ = batch()
    ours = evaluated([CrossEntropy(), term], logits, labels, round=7)
    plain = evaluated([CrossEntropy()], logits, labels, round=7)
    assert torch.equal(ours[0], plain[0])
    assert torch.equal(ours[1], plain[1])


@pytest.mark.parametrize(
    ("term", "before"),
    [
        (LabelSmoothing(0.3, 8), CrossEntropy()),
        (EntropyMinimization(4.0, 8), EntropyMinimization(0.0, 0)),
        (GeneralizedCrossEntropy(0.7, 0.4, 8), GeneralizedCrossEntropy(0.7, 0.0, 0)),
    ],
)
def test_what_starts_later_starts_in_its_round(term: LossTerm, before: LossTerm):
    logits, labels, _ = batch()
    same = [
        torch.equal(evaluated([term], logits, labels, r)[0], evaluated([before], logits, labels, r)[0])
        for r in (0, 7, 8, 9)
    ]
    assert same == [True, True, False, False]


def test_truncation_is_strict():
    """p_y = κ is not believed."""
    logits = torch.zeros(1, 2, dtype=torch.float64)
    at_half, below = (GeneralizedCrossEntropy(0.7, k, 0) for k in (0.5, 0.5 - 1e-9))
    assert evaluated([at_half], logits, torch.tensor([0]))[1].abs().max() == 0
    assert evaluated([below], logits, torch.tensor([0]))[1].abs().max() > 0


def test_minimising_entropy_makes_predictions_surer():
    """A sign the other way would make them flat."""
    logits = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    _, gradient = evaluated([EntropyMinimization(4.0, 0)], logits, torch.tensor([1]))
    assert gradient[0, 0] < 0 < gradient[0, 1]


def test_dividing_by_the_temperature_makes_the_gradient_small():
    logits, labels, _ = batch()
    terms = (TemperatureScaling(4.0, "divide"), CrossEntropy(), TemperatureScaling(4.0, "multiply"))
    small, plain, large = (evaluated([term], 0.1 * logits, labels)[1].norm() for term in terms)
    assert small < 0.5 * plain < plain < large


# ------------------------------------------------------------------------------------------------- configuration


def values(*words: str) -> dict[str, Any]:
    plain = compose.resolved(compose.load(["method=fedavg", *words]))
    return {k: v for k, v in next(iter(plain["method"]["local"].values())).items() if k != "_target_"}


@pytest.mark.parametrize(
    ("term", "data", "wanted"),
    [
        ("label_smoothing", "cifar10", {"r": 0.1, "start": 0}),
        ("negative_label_smoothing", "cifar100", {"r": -0.05, "start": 0}),
        ("entropy_minimization", "cifar10", {"weight": 4.0, "start": 50}),
        ("temperature_scaling", "cifar10", {"temperature": 4.0, "form": "divide"}),
        ("generalized_cross_entropy", "cifar100", {"q": 0.7, "kappa": 0.0, "start": 0}),
        ("truncated_gce", "cifar10", {"q": 0.7, "kappa": 0.1, "start": 50}),
        ("truncated_gce", "clothing1m", {"q": 0.7, "kappa": 0.1, "start": 50}),
        ("truncated_gce", "cifar100", {"q": 0.1, "kappa": 0.3, "start": 50}),
        ("truncated_gce_by_visit", "cifar10", {"q": 0.7, "kappa": 0.1, "start": 50, "least": 10}),
        ("truncated_gce_by_visit", "cifar100", {"q": 0.1, "kappa": 0.3, "start": 50, "least": 10}),
        ("symmetric_cross_entropy", "cifar10", {"alpha": 0.1, "beta": 1.0, "log_zero": A}),
        ("symmetric_cross_entropy", "cifar100", {"alpha": 6.0, "beta": 0.1, "log_zero": A}),
    ],
)
def test_the_papers_values_are_the_defaults(term: str, data: str, wanted: dict[str, Any]):
    assert values(f"method/local=[{term}]", f"protocol={data}") == pytest.approx(wanted)


def test_a_saturated_sample_has_the_loss_and_the_gradient_of_its_label():
    """The entries of the other classes are infinite; they are left out, not multiplied by 0."""
    values = torch.tensor([[0.5, math.inf, -math.inf], [math.nan, 2.0, math.inf]], requires_grad=True)
    picked = of_labels(values, torch.tensor([0, 1]))
    picked.sum().backward()
    assert picked.tolist() == [0.5, 2.0]
    assert values.grad is not None
    assert values.grad.tolist() == [[1, 0, 0], [0, 1, 0]]
