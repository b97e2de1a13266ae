"""The check of a network from elsewhere: one pass on blank images, before a run starts."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from flnl.core.errors import UserError, in_one_line
from flnl.core.step import LOGITS
from flnl.models.layers import Shape
from flnl.models.outputs import has_outputs, outputs

SAMPLES = 2


def check_logits(forward: Callable[[Tensor], object], inputs: Tensor, num_classes: int, model: str, fix: str) -> None:
    """Check that ``forward`` gives logits of ``inputs``.

    Args:
        forward: the network's forward pass, in evaluation mode.
        inputs: blank images [B, C, H, W].
        num_classes: K, the number of classes of the data set.
        model: the key that names the network with its value, for messages.
        fix: how the number of outputs can be changed, for messages.

    Raises:
        UserError: if the pass fails, or if its result is no tensor [B, K].
    """
    shape = "x".join(map(str, inputs.shape[1:]))
    try:
        with torch.no_grad():
            logits = forward(inputs)
    except Exception as error:  # a network from elsewhere may do anything with its inputs
        raise UserError(
            f"{model} does not take inputs of {shape} (channels x height x width): {in_one_line(error)}"
        ) from error
    wanted = f"forward must return logits, a tensor [B, {num_classes}]"
    if not isinstance(logits, Tensor):
        raise UserError(f"{model} returns a {type(logits).__name__} of a batch; {wanted}")
    if logits.dim() == 2 and len(logits) == len(inputs) and logits.shape[1] != num_classes:
        raise UserError(f"{model} has {logits.shape[1]} outputs, but the dataset has {num_classes} classes: {fix}")
    if logits.shape != (len(inputs), num_classes):
        raise UserError(f"{model} returns a tensor {list(logits.shape)} of {len(inputs)} images; {wanted}")


def _logits(module: nn.Module, inputs: Tensor) -> object:
    named = outputs(module, inputs)
    if not isinstance(named, Mapping) or LOGITS not in named:
        raise TypeError(f"the method outputs must return a mapping with {LOGITS}")
    return named[LOGITS]


def probe(module: nn.Module, shape: Shape, num_classes: int, model: str, fix: str) -> None:
    """Run ``module`` on blank images of ``shape``, in evaluation mode, and check what it gives.

    Layers that find out their size at the first pass are complete afterwards. The arguments are those of
    ``check_logits``.

    Raises:
        UserError: as ``check_logits``; if its method ``outputs`` gives no logits by name.
    """
    modes = [(layer, layer.training) for layer in module.modules()]
    module.eval()
    try:
        inputs = torch.zeros(SAMPLES, *shape)
        check_logits(module, inputs, num_classes, model, fix)
        if has_outputs(module):
            model = f"{model}, by its method outputs,"
            check_logits(lambda images: _logits(module, images), inputs, num_classes, model, fix)
    finally:
        for layer, mode in modes:
            layer.training = mode
