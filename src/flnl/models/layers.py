"""What every network of this package shares: its form, the range of a dropout rate and the check of its inputs.

A network is a body that gives features and a linear head that classifies them; its forward pass is a pure function of
parameters, buffers and inputs: no branch on values, nothing changed but batch-norm buffers. Beside its layers it acts
on each channel alone, so that many clients can be run as one network.
"""

from typing import Annotated

from annotated_types import Interval
from torch import Tensor, nn

from flnl.core.errors import UserError
from flnl.core.step import FEATURES, LOGITS

Shape = tuple[int, int, int]
"""(C, H, W) of the inputs."""

DropRate = Annotated[float, Interval(ge=0, lt=1)]
"""The probability that dropout zeroes a unit; zero draws nothing."""


class Classifier(nn.Module):
    """A network in two parts, a body and a linear head: ``head(body(inputs))``.

    The head's parameters are named ``head.*`` and the others ``body.*`` whatever the architecture, for methods that
    treat the last layer apart.
    """

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, inputs: Tensor) -> Tensor:
        """What the head reads, [B, d]: the penultimate features of ``inputs`` [B, C, H, W]."""
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
    """Whether any layer normalises by the statistics of the batch, so that samples of a batch affect each other."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return any(isinstance(layer, kinds) for layer in module.modules())


def check_inputs(model: str, shape: Shape, *, smallest: int = 1, channels: int | None = None) -> None:
    """Refuse inputs that ``model`` (the name in ``conf/model``) cannot take.

    Raises:
        UserError: if a side is shorter than ``smallest``, or if the number of channels is not ``channels``.
    """
    needs = []
    if channels is not None and shape[0] != channels:
        needs.append(f"{channels} channels")
    if min(shape[1:]) < smallest:
        needs.append(f"inputs of at least {smallest}x{smallest}")
    if needs:
        found = "x".join(map(str, shape))
        raise UserError(
            f"model={model} needs {' and '.join(needs)}; the dataset has {found} (channels x height x width)"
        )
