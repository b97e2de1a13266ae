"""The optimiser's momentum that a client continues with."""

import torch

from flnl.core.payload import Params


def continued(kept: Params | None, parameters: Params) -> Params:
    """A new momentum buffer for each of ``parameters``, by name.

    It is the kept one of this name, if there is one and its shape is the parameter's, otherwise zero.
    """
    buffers = {name: torch.zeros_like(parameter) for name, parameter in parameters.items()}
    for name, buffer in buffers.items():
        earlier = None if kept is None else kept.get(name)
        if earlier is not None and earlier.shape == buffer.shape:
            buffer.copy_(earlier)
    return buffers
