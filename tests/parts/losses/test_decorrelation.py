"""The penalty on correlated features: a batch by hand, a loop over pairs, and batches with nothing to compare."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flnl.core.parts import Setting
from flnl.core.step import FEATURES, LOGITS
from flnl.models.mlp import MLP
from flnl.parts.losses.decorrelation import Decorrelation
from tests.toys import ONE_STEP, step


def loss(features: Tensor, weight: float = 0.1) -> Tensor:
    one = replace(step(logits=features), computed={LOGITS: features, FEATURES: features})
    value, _ = Decorrelation(weight)(one, None)
    return value


def normal(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=dtype)


def test_a_batch_of_three_by_hand() -> None:
    # Less the means: (-1, 0, 1) and (-1, -1, 2), of variances 1 and 3. Their product sums to 3/√3; its square is 3, and
    # a third of it, B = 3, is 1 for either order of the pair.
    features = torch.tensor([[1.0, 0.0], [2.0, 0.0], [3.0, 3.0]], dtype=torch.float64)
    assert loss(features, 1.0).item() == pytest.approx(1, rel=1e-7)
    assert loss(features).item() == pytest.approx(0.1, rel=1e-7)


def test_it_is_the_mean_over_pairs_in_either_order() -> None:
    features = normal(6, 4) * torch.tensor([1.0, 10.0, 0.1, 3.0], dtype=torch.float64) + 5
    x = features.numpy()
    z = (x - x.mean(0)) / np.sqrt(x.var(0, ddof=1) + 1e-8)
    pairs = [sum(z[b, i] * z[b, j] for b in range(6)) ** 2 / 6 for i in range(4) for j in range(4) if i != j]
    assert len(pairs) == 12
    assert loss(features, 0.7).item() == pytest.approx(0.7 * np.mean(pairs), rel=1e-12)
    squared = np.corrcoef(x.T) ** 2
    assert loss(features, 1.0).item() == pytest.approx(25 / 6 * (squared.sum() - 4) / 12, rel=1e-5)


def test_its_gradient() -> None:
    assert torch.autograd.gradcheck(loss, normal(5, 3).requires_grad_())


@pytest.mark.parametrize("shape", [(1, 4), (5, 1), (1, 1)])
def test_one_sample_or_one_feature_has_nothing_to_compare(shape: tuple[int, int]) -> None:
    features = normal(*shape).requires_grad_()
    value = loss(features) + 0 * features.sum()
    value.backward()
    assert value.item() == 0
    assert features.grad is not None
    assert not features.grad.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("constant", [0.0, 0.1, 1000.1])
def test_a_feature_that_all_samples_share_adds_nothing(constant: float, dtype: torch.dtype) -> None:
    """Its standard deviation is zero, or what rounding makes of it."""
    shared = torch.full((7, 2), constant)
    features = torch.cat([normal(7, 3, dtype=torch.float32), shared], 1).to(dtype).requires_grad_()
    value = loss(features)
    value.backward()
    alone = features.detach()[:, :3].requires_grad_()
    others = loss(alone) * 6 / 20
    others.backward()
    assert value.item() == pytest.approx(others.item(), rel=1e-5)
    assert features.grad is not None
    assert alone.grad is not None
    torch.testing.assert_close(features.grad[:, :3], alone.grad)
    assert features.grad[:, 3:].abs().max() < 1e-2


def test_nearly_constant_features_have_a_bounded_gradient() -> None:
    """Even where both deviate by as much as what is added to variances, it is below 1 / √VARIANCE."""
    features = (1 + 1e-4 * normal(8, 2, dtype=torch.float32)).requires_grad_()
    loss(features).backward()
    assert features.grad is not None
    assert features.grad.isfinite().all()
    assert features.grad.abs().max() < 1e4


def test_mixed_precision_sums_in_full() -> None:
    features = normal(32, 16, dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        value = loss(features.bfloat16())
    assert value.dtype == torch.float32
    assert value.item() == pytest.approx(loss(features).item(), rel=0.02)


def test_it_needs_features_that_are_trained() -> None:
    part, setting = Decorrelation(0.1), Setting({}, (1,), ONE_STEP)
    assert part.refuses(MLP([2], 0.0)((1, 2, 2), 3), (), setting) is None
    assert "nothing before" in str(part.refuses(MLP([], 0.0)((1, 2, 2), 3), (), setting))
    assert "no such layer" in str(part.refuses(nn.Sequential(nn.Flatten(), nn.Linear(4, 3)), (), setting))
