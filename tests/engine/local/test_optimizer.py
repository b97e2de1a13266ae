"""The optimiser against torch's own, to the bit: it is the same kernel, called with less around it."""

import pytest
import torch
from torch import Tensor, nn

from flnl.core.training import Training
from flnl.engine.local.optimizer import Sgd


def gradients(parameters: list[nn.Parameter], step: int, missing: int | None) -> None:
    draw = torch.Generator().manual_seed(step)
    for number, parameter in enumerate(parameters):
        drawn = torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype)
        parameter.grad = None if number == missing else torch.empty_like(parameter).copy_(drawn)


def start(memory_format: torch.memory_format, dtype: torch.dtype) -> list[nn.Parameter]:
    draw = torch.Generator().manual_seed(100)
    shapes = ((4, 3, 2, 2), (4,), (5, 7))
    tensors = [torch.randn(shape, generator=draw).to(dtype) for shape in shapes]
    return [nn.Parameter(t.contiguous(memory_format=memory_format) if t.dim() == 4 else t) for t in tensors]


CASES = [(0.0, 0.0), (0.9, 0.0), (0.5, 0.01), (0.0, 0.01)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("momentum", "weight_decay"), CASES)
def test_steps_are_torchs(momentum: float, weight_decay: float, memory_format: torch.memory_format, dtype: torch.dtype):
    ours, theirs = start(memory_format, dtype), start(memory_format, dtype)
    sgd = Sgd(
        ours, Training(lr=0.3, momentum=momentum, weight_decay=weight_decay, batch_size=1, epochs=1, lr_decay=1.0)
    )
    reference = torch.optim.SGD(theirs, 0.3, momentum, weight_decay=weight_decay, fused=True)
    for step in range(4):
        gradients(ours, step, None)
        gradients(theirs, step, None)
        sgd.step()
        reference.step()
        for own, their in zip(ours, theirs, strict=True):
            assert torch.equal(own, their)
            assert own.is_leaf


@pytest.mark.parametrize("missing", [0, 1])
@pytest.mark.parametrize(("momentum", "weight_decay"), CASES)
def test_a_gradient_may_come_late(momentum: float, weight_decay: float, missing: int):
    """Torch's fused form would let all momenta start anew then; its plain form does not."""
    ours, theirs = (start(torch.contiguous_format, torch.float64) for _ in range(2))
    sgd = Sgd(
        ours, Training(lr=0.3, momentum=momentum, weight_decay=weight_decay, batch_size=1, epochs=1, lr_decay=1.0)
    )
    reference = torch.optim.SGD(theirs, 0.3, momentum, weight_decay=weight_decay, fused=False, foreach=False)
    for step in range(4):
        late = missing if step < 2 else None
        gradients(ours, step, late)
        gradients(theirs, step, late)
        sgd.step()
        reference.step()
        for own, their in zip(ours, theirs, strict=True):
            torch.testing.assert_close(own, their, rtol=1e-12, atol=1e-14)


def test_without_any_gradient_nothing_moves():
    parameters = start(torch.contiguous_format, torch.float32)
    before = [p.detach().clone() for p in parameters]
    Sgd(parameters, Training(lr=0.3, momentum=0.9, weight_decay=0.1, batch_size=1, epochs=1, lr_decay=1.0)).step()
    assert all(torch.equal(p, b) for p, b in zip(parameters, before, strict=True))


def test_momenta_are_kept_where_they_were_given():
    parameter = nn.Parameter(torch.zeros(3))
    momentum = torch.tensor([1.0, 0.0, -1.0])
    given: dict[Tensor, Tensor] = {parameter: momentum}
    sgd = Sgd(
        [parameter], Training(lr=1.0, momentum=0.5, weight_decay=0.0, batch_size=1, epochs=1, lr_decay=1.0), given
    )
    parameter.grad = torch.tensor([0.0, 2.0, 0.0])
    sgd.step()
    assert momentum.tolist() == [0.5, 2.0, -0.5]
    assert parameter.tolist() == [-0.5, -2.0, 0.5]
