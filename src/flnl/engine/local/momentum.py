"""The optimiser's buffers that a client continues with: its momentum, or Adam's running averages and steps."""

from collections.abc import Mapping

import torch

from flnl.core.optimizer import MOMENTUM, Buffer
from flnl.core.payload import Params


def continued(kept: Params | None, parameters: Params, buffer: Buffer = MOMENTUM) -> Params:
    """A new tensor of this ``buffer`` for each of ``parameters``, by the parameter's name.

    It is the kept one, if there is one and its shape is right, otherwise zero.

    Args:
        kept: what ``as_kept`` made at an earlier visit; None if nothing is kept.
        parameters: those that are trained, by name.
        buffer: which of the optimiser's buffers.
    """
    buffers = {
        name: torch.zeros((), dtype=torch.float32, device=p.device) if buffer.scalar else torch.zeros_like(p)
        for name, p in parameters.items()
    }
    for name, tensor in buffers.items():
        earlier = None if kept is None else kept.get(_key(name, buffer.name))
        if earlier is not None and earlier.shape == tensor.shape:
            tensor.copy_(earlier)
    return buffers


def as_kept(buffers: Mapping[str, Params]) -> Params:
    """The buffers as a client keeps them: in one mapping, momentum by the parameter's name alone.

    Args:
        buffers: by the buffer's name, then by the parameter's.
    """
    return {_key(name, buffer): tensor for buffer, tensors in buffers.items() for name, tensor in tensors.items()}


def _key(parameter: str, buffer: str) -> str:
    return parameter if buffer == MOMENTUM.name else f"{parameter}/{buffer}"
