"""The common structure of all networks, the range of dropout rates, and the check of input shapes.

A network is a body that computes features and a linear head that classifies them. Its forward pass is a pure function
of parameters, buffers and inputs: it does not branch on values, and changes only batch-norm buffers. Outside of its
layers, it never mixes channels, so many clients can run as one network.
"""

from typing import Annotated

from annotated_types import Interval
from torch import Tensor, nn

from flnl.core.errors import UserError
from flnl.core.step import FEATURES, LOGITS

Shape = tuple[int, ...]
"""Of one input: (C, H, W) of images, (D,) of rows of numbers, (L,) of token ids."""

Depth = Annotated[int, Interval(ge=1, le=256)]
"""The number of blocks of a stage."""

DropRate = Annotated[float, Interval(ge=0, lt=1)]
"""The probability that dropout zeroes a unit; with zero, no random numbers are drawn."""


class Classifier(nn.Module):
    """A network in two parts, a body and a linear head: ``head(body(inputs))``.

    In every architecture, the head's parameters are named ``head.*`` and all others ``body.*``, for methods that treat
    the last layer differently.
    """

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, inputs: Tensor) -> Tensor:
        """The penultimate features [B, d] of ``inputs`` [B, C, H, W], the input of the head."""
        features: Tensor = self.body(inputs)
        return features

    def outputs(self, inputs: Tensor) -> dict[str, Tensor]:
        """``logits`` [B, num_classes] and ``features`` [B, d] of ``inputs`` [B, C, H, W]."""
        features = self.features(inputs)
        return {LOGITS: self.head(features), FEATURES: features}

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [B, num_classes] of ``inputs`` [B, C, H, W]."""
        logits: Tensor = self.head(self.features(inputs))
        return logits


def has_batch_norm(module: nn.Module) -> bool:
    """Whether any layer normalises with batch statistics, so that the samples of a batch affect each other."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return any(isinstance(layer, kinds) for layer in module.modules())


def check_inputs(model: str, shape: Shape, *, smallest: int = 1, channels: int | None = None) -> None:
    """Check that ``model`` (its name in ``conf/model``) accepts images of ``shape``.

    Raises:
        UserError: if a side is shorter than ``smallest``, or the number of channels is not ``channels``.
    """
    needs = []
    if channels is not None and shape[0] != channels:
        needs.append(f"{channels} channels")
    if min(shape[1:]) < smallest:
        needs.append(f"inputs of at least {smallest}x{smallest}")
    if needs:
        actual = "x".join(map(str, shape))
        raise UserError(
            f"model={model} needs {' and '.join(needs)}; the dataset has {actual} (channels x height x width)"
        )
