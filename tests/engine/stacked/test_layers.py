"""The stacked convolution, beside one convolution per client."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.engine.stacked.layers import Conv2d

CLIENTS = 2


@pytest.mark.parametrize("capability", ["AVX2", "AVX512"])
@pytest.mark.parametrize(("channels", "groups"), [(3, 1), (6, 2), (2, 1)])
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
def test_it_is_a_convolution_per_client(
    capability: str,
    channels: int,
    groups: int,
    memory_format: torch.memory_format,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Outputs and gradients, whatever a CPU needs for speed; three channels a group get a fourth of zeros on AVX2."""
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
    computed_with, grouped = [], F.conv2d

    def noted(inputs: Tensor, weight: Tensor, *more: Any) -> Tensor:
        computed_with.append(weight.shape[1])
        return grouped(inputs, weight, *more)

    monkeypatch.setattr(F, "conv2d", noted)
    draw = torch.Generator().manual_seed(0)
    inputs = torch.randn(4, CLIENTS * channels, 7, 7, generator=draw, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(CLIENTS * 4, channels // groups, 3, 3, generator=draw, dtype=torch.float64, requires_grad=True)
    bias = torch.randn(CLIENTS * 4, generator=draw, dtype=torch.float64, requires_grad=True)
    layer = Conv2d(nn.Conv2d(channels, 4, 3, padding=1, stride=2, groups=groups))
    layer.memory_format, layer.weight, layer.bias = memory_format, weight, bias

    outputs = layer(inputs)
    four = capability == "AVX2" and channels // groups == 3 and memory_format is torch.channels_last
    assert computed_with == [4 if four else channels // groups]

    each = zip(inputs.chunk(CLIENTS, 1), weight.chunk(CLIENTS), bias.chunk(CLIENTS), strict=True)
    expected = torch.cat([grouped(x, w, b, 2, 1, 1, groups) for x, w, b in each], 1)
    torch.testing.assert_close(outputs, expected)
    found, wanted = (torch.autograd.grad(of.square().sum(), (inputs, weight, bias)) for of in (outputs, expected))
    torch.testing.assert_close(found, wanted)
