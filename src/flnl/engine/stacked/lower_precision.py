"""Copies of parameters in bfloat16 for one step, all in one pass forward and one back.

Autocast converts each weight on its own, and each gradient on its way back: two kernels a tensor, of which a GPU
spends more time on the launch than on the bytes. The values are the same.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from flnl.engine.placement import Placement


class _Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)  # a tensor that the loss does not reach has no gradient
        return _converted(tensors, torch.bfloat16)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        reached = iter(_converted([gradient for gradient in gradients if gradient is not None], torch.float32))
        return tuple([None if gradient is None else next(reached) for gradient in gradients])


def at_once(placement: Placement) -> bool:
    """Whether a step converts all weights at once: in mixed precision on a GPU.

    A CPU launches nothing, and there this has been slower.
    """
    return placement.precision == "bf16-mixed" and placement.device.type != "cpu"


def rounded(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """``tensors``, of float32 and one device, in bfloat16 and the same memory layouts; gradients pass to them."""
    result: tuple[Tensor, ...] = _Rounded.apply(*tensors)  # type: ignore[no-untyped-call]
    return result


def _converted(tensors: Sequence[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    into = [torch.empty_like(tensor, dtype=dtype) for tensor in tensors]
    if into:
        torch._foreach_copy_(into, list(tensors))
    return tuple(into)
