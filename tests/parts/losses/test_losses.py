"""The summands of the local objective and mixup: values by hand, gradients against closed forms, laws of the draws."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from scipy.stats import kstest
from torch import Tensor, nn

from flnl.core.parts import LossTerm
from flnl.core.payload import Params, Payload
from flnl.core.step import Mixing
from flnl.methods.fedcorr.exchange import NoiseDirective
from flnl.methods.fedcorr.loss import AdaptiveProximal
from flnl.parts.batches import Mixup, Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from flnl.parts.losses.proximal import Proximal
from tests.toys import mlp, network, step, vector


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# --------------------------------------------------------------------------------------------------- cross-entropy


def test_cross_entropy_of_labels():
    logits, labels = normal(6, 4), torch.tensor([0, 3, 1, 1, 2, 0])
    loss, _ = CrossEntropy()(step(logits=logits, targets=labels), None)
    rows = logits.numpy()
    expected = np.log(np.exp(rows).sum(1)) - rows[np.arange(6), labels.numpy()]
    assert loss.shape == (6,)
    np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-12)


def test_cross_entropy_of_soft_targets():
    logits, targets = normal(6, 4), torch.softmax(normal(6, 4, seed=1), 1)
    loss, _ = CrossEntropy()(step(logits=logits, targets=targets), None)
    rows = logits.numpy()
    expected = -(targets.numpy() * (rows - np.log(np.exp(rows).sum(1, keepdims=True)))).sum(1)
    assert loss.shape == (6,)
    np.testing.assert_allclose(loss.numpy(), expected, rtol=1e-12)


@pytest.mark.parametrize("soft", [True, False])
def test_gradient_of_cross_entropy_is_prediction_minus_target(soft: bool):
    logits = normal(5, 3).requires_grad_()
    labels = torch.tensor([0, 2, 1, 1, 0])
    onehot = torch.eye(3, dtype=torch.float64)[labels]
    targets = 0.3 * onehot + 0.7 / 3 if soft else labels
    loss, _ = CrossEntropy()(step(logits=logits, targets=targets), None)
    loss.sum().backward()
    expected = torch.softmax(logits.detach(), 1) - (targets if soft else onehot)
    torch.testing.assert_close(logits.grad, expected, rtol=1e-12, atol=1e-12)


def test_cross_entropy_of_certain_and_wrong_is_finite():
    loss, _ = CrossEntropy()(step(logits=torch.tensor([[1e4, 0.0]]), targets=torch.tensor([1])), None)
    assert loss.item() == pytest.approx(1e4)


# ----------------------------------------------------------------------------------------------------------- mixup


def test_mixup_is_the_mixture_of_both_losses():
    v = vector("fedcorr.mixup")
    logits = torch.tensor([v.inputs["logits"]], dtype=torch.float64)
    first, second, share = v.inputs["a"], v.inputs["b"], v.inputs["lam"]
    mixing = Mixing(share, torch.tensor([1, 0]))
    targets = mixing.targets(torch.tensor([first, second]), 3, torch.float64)
    assert targets[0].tolist() == pytest.approx([share, 0, 1 - share])
    loss, _ = CrossEntropy()(step(logits=logits, targets=targets[:1]), None)
    assert loss.item() == v.approx("loss")
    apart = [CrossEntropy()(step(logits=logits, targets=torch.tensor([c])), None)[0].item() for c in (first, second)]
    assert loss.item() == pytest.approx(share * apart[0] + (1 - share) * apart[1], rel=1e-12)


def test_mixup_of_a_batch():
    """Sample i has weight λ, its partner 1-λ, in the pixels and in the target alike."""
    inputs, labels, partner = normal(4, 1, 2, 2), torch.tensor([2, 0, 1, 1]), torch.tensor([1, 3, 2, 0])
    mixing = Mixing(0.25, partner)
    mixed, targets = mixing.rows(inputs), mixing.targets(labels, 5, inputs.dtype)
    onehot = np.eye(5)[labels.numpy()]
    for i, j in enumerate(partner.tolist()):
        torch.testing.assert_close(mixed[i], 0.25 * inputs[i] + 0.75 * inputs[j], rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(targets[i].numpy(), 0.25 * onehot[i] + 0.75 * onehot[j], rtol=1e-12)
    assert targets.dtype == inputs.dtype
    np.testing.assert_allclose(targets.sum(1).numpy(), 1, rtol=1e-12)


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_mixup_at_its_ends_is_one_of_the_two(share: float):
    inputs, labels, partner = normal(3, 1, 1, 1), torch.tensor([0, 1, 2]), torch.tensor([2, 0, 1])
    mixing = Mixing(share, partner)
    mixed, targets = mixing.rows(inputs), mixing.targets(labels, 3, inputs.dtype)
    who = torch.arange(3) if share == 1 else partner
    assert torch.equal(mixed, inputs[who])
    assert torch.equal(targets.argmax(1), labels[who])


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup_draws_from_the_beta_distribution(alpha: float):
    """One λ a batch, uniform on [0, 1] at α = 1."""
    rule, rng = Mixup(alpha, True, None), np.random.default_rng(0)
    shares = []
    for _ in range(2000):
        draw = rule.mixing(rng, 2, 1)
        assert draw is not None
        shares.append(draw.share)
    assert kstest(shares, "beta", (alpha, alpha)).pvalue > 0.01


def test_mixup_pairs_by_a_uniform_permutation():
    rule, rng = Mixup(1.0, True, None), np.random.default_rng(0)
    counts = np.zeros((4, 4))
    for _ in range(2000):
        draw = rule.mixing(rng, 4, 1)
        assert draw is not None
        partner = draw.partner.numpy()
        assert sorted(partner) == [0, 1, 2, 3]
        counts[np.arange(4), partner] += 1
    assert np.abs(counts / 2000 - 0.25).max() < 0.05


@pytest.mark.parametrize("rule", [Mixup(0.0, True, None), Mixup(1.0, False, None), Mixup(1.0, True, [1, 3]), Plain()])
def test_mixup_switched_off_leaves_the_batch_alone(rule: Mixup | Plain):
    assert rule.mixing(np.random.default_rng(0), 3, 2) is None


@pytest.mark.parametrize(
    ("stages", "mixes"), [([1, 3], [True, False, True]), ([2], [False, True, False]), (None, [True] * 3)]
)
def test_mixup_acts_in_its_stages(stages: list[int] | None, mixes: list[bool]):
    rule = Mixup(1.0, True, stages)
    assert [rule.mixing(np.random.default_rng(0), 3, stage) is not None for stage in (1, 2, 3)] == mixes


# -------------------------------------------------------------------------------------------------------- proximal


def told(level: float) -> Payload:
    return Payload(NoiseDirective(noisy=level > 0, level=level))


def penalty(
    term: LossTerm, live: Params, received: Params, *, level: float = 1.0, number: int = 1
) -> tuple[float, dict[str, Tensor]]:
    """The term's value and its gradient by autograd."""
    live = {name: p.clone().requires_grad_() for name, p in live.items()}
    value, state = term(step(params=live, received=received, extras=told(level), number=number), None)
    assert value.dim() == 0
    assert state is None
    value.backward()
    gradients = {name: p.grad for name, p in live.items() if p.grad is not None}
    assert gradients.keys() == live.keys()
    return value.item(), gradients


LIVE: Params = {"weight": torch.tensor([[1.0, 2.0], [3.0, 4.0]]).double(), "bias": torch.tensor([0.5]).double()}
RECEIVED: Params = {"weight": torch.tensor([[0.0, 1.0], [1.0, 1.0]]).double(), "bias": torch.tensor([0.0]).double()}
APART = {name: LIVE[name] - RECEIVED[name] for name in LIVE}
SQUARE = 1 + 1 + 4 + 9 + 0.25


@pytest.mark.parametrize("form", ["squared", "norm"])
def test_adaptive_proximal_by_hand(form: str):
    v = vector("fedcorr.prox")
    live = {"w": torch.tensor(v.inputs["w"], dtype=torch.float64)}
    received = {"w": torch.tensor(v.inputs["w_global"], dtype=torch.float64)}
    term = AdaptiveProximal(v.inputs["beta"], form)  # type: ignore[arg-type]
    value, gradient = penalty(term, live, received, level=v.inputs["mu_hat"])
    assert value == v.approx(f"{form}_value")
    assert gradient["w"].tolist() == v.approx(f"{form}_grad")


CLOSED_FORMS: dict[str, tuple[LossTerm, float, Callable[[Tensor], Tensor]]] = {
    "fedprox": (Proximal(0.1, "squared_half"), 0.1 / 2 * SQUARE, lambda d: 0.1 * d),
    "fedprox norm": (Proximal(0.1, "norm"), 0.1 * math.sqrt(SQUARE), lambda d: 0.1 * d / math.sqrt(SQUARE)),
    "squared": (AdaptiveProximal(5.0, "squared"), 5 * 0.4 * SQUARE, lambda d: 5 * 0.4 * 2 * d),
    "norm": (AdaptiveProximal(5.0, "norm"), 5 * 0.4 * math.sqrt(SQUARE), lambda d: 5 * 0.4 * d / math.sqrt(SQUARE)),
}


@pytest.mark.parametrize("name", CLOSED_FORMS)
def test_proximal_terms_have_their_closed_forms(name: str):
    """One distance over all tensors together: norms a tensor, added up, are another thing."""
    term, expected, gradient = CLOSED_FORMS[name]
    value, found = penalty(term, LIVE, RECEIVED, level=0.4)
    assert value == pytest.approx(expected, rel=1e-12)
    for key in LIVE:
        torch.testing.assert_close(found[key], gradient(APART[key]), rtol=1e-12, atol=1e-15)


def test_both_forms_have_one_gradient_at_half():
    live = {"w": torch.tensor([0.3, 0.4], dtype=torch.float64)}
    received = {"w": torch.zeros(2, dtype=torch.float64)}
    squared, norm = (penalty(AdaptiveProximal(5.0, form), live, received)[1]["w"] for form in ("squared", "norm"))
    torch.testing.assert_close(squared, norm, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", CLOSED_FORMS)
@pytest.mark.parametrize("number", [0, 1])
def test_proximal_terms_start_at_zero_without_a_pull(name: str, number: int):
    """The norm has no gradient at the received weights; what is taken for it must not be NaN."""
    value, gradient = penalty(CLOSED_FORMS[name][0], LIVE, LIVE, level=0.4, number=number)
    assert value == 0
    assert all(torch.equal(g, torch.zeros_like(g)) for g in gradient.values())


def test_norm_with_one_tensor_unmoved_is_finite():
    """A layer that has not moved yet while another has."""
    live = {"weight": LIVE["weight"], "bias": RECEIVED["bias"]}
    _, gradient = penalty(AdaptiveProximal(1.0, "norm"), live, RECEIVED)
    assert gradient["bias"].tolist() == [0.0]
    assert gradient["weight"].isfinite().all()


def test_norm_skips_the_first_batch_of_an_epoch_and_squared_does_not():
    assert penalty(AdaptiveProximal(5.0, "norm"), LIVE, RECEIVED, number=0)[0] == 0
    assert all((g == 0).all() for g in penalty(AdaptiveProximal(5.0, "norm"), LIVE, RECEIVED, number=0)[1].values())
    assert penalty(AdaptiveProximal(5.0, "squared"), LIVE, RECEIVED, number=0)[0] == pytest.approx(5 * SQUARE)
    assert penalty(Proximal(1.0, "squared_half"), LIVE, RECEIVED, number=0)[0] == pytest.approx(SQUARE / 2)


@pytest.mark.parametrize("form", ["squared", "norm"])
def test_adaptive_proximal_vanishes_for_clean_clients(form: str):
    value, gradient = penalty(AdaptiveProximal(5.0, form), LIVE, RECEIVED, level=0.0)  # type: ignore[arg-type]
    assert value == 0
    assert all((g == 0).all() for g in gradient.values())


def test_adaptive_proximal_without_a_level_says_what_is_missing():
    with pytest.raises(LookupError, match="NoiseDirective"):
        AdaptiveProximal(5.0, "squared")(step(params=LIVE, received=RECEIVED), None)


@pytest.mark.parametrize(
    ("term", "expected"),
    [
        (Proximal(1.0, "squared_half"), lambda square: square / 2),
        (AdaptiveProximal(1.0, "squared"), lambda square: square),
        (AdaptiveProximal(1.0, "norm"), math.sqrt),
    ],
)
def test_buffers_are_no_part_of_the_distance(term: LossTerm, expected: Callable[[float], float]):
    """Running statistics move with every batch; they are not what the penalty holds back."""
    module = mlp(4, 3, norm=True)
    net = network(module)
    received = net.params()
    norm = next(layer for layer in module.modules() if isinstance(layer, nn.BatchNorm1d))
    assert norm.running_mean is not None
    assert norm.running_var is not None
    norm.running_mean += 3
    norm.running_var *= 2
    assert set(net.trainable()) == {name for name, _ in module.named_parameters()} < set(received)
    value, _ = term(step(params=net.trainable(), received=received, extras=told(1.0)), None)
    assert value.item() == 0
    value.backward()
    assert all(p.grad is None or (p.grad == 0).all() for p in module.parameters())
    with torch.no_grad():
        norm.weight.add_(2)
    value, _ = term(step(params=net.trainable(), received=received, extras=told(1.0)), None)
    assert value.item() == pytest.approx(expected(4.0 * len(norm.weight)))


def test_a_mixed_rows_weight_is_mixed_as_its_target_is():
    """A sample of weight 0 would otherwise be learned from through its partner."""
    mixing = Mixing(0.75, torch.tensor([1, 0]))
    assert mixing.rows(torch.tensor([1.0, 0.0])).tolist() == [0.75, 0.25]
