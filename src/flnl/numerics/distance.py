"""Distances between models."""

from collections.abc import Collection, Mapping

import torch
from torch import Tensor

from flnl.core.payload import Params


def squared_move(received: Params, trained: Params, trainable: Collection[str]) -> float:
    """``‖θ_k - θ‖²`` over the trainable parameters, without running statistics."""
    models = ({name: params[name].double() for name in trainable} for params in (trained, received))
    return float(squared_distance(*models))


def squared_distance(params: Mapping[str, Tensor], anchor: Params) -> Tensor:
    """``‖w − w_t‖²`` over all trainable parameters, a scalar."""
    total: Tensor = torch.stack([(p - anchor[name]).square().sum() for name, p in params.items()]).sum()
    return total


def distance(params: Mapping[str, Tensor], anchor: Params) -> Tensor:
    """``‖w − w_t‖``, a scalar; its gradient at w = w_t is defined as zero."""
    parts = torch.stack([torch.linalg.vector_norm(p - anchor[name]) for name, p in params.items()])
    total: Tensor = torch.linalg.vector_norm(parts)
    return total
