"""Inception-ResNet-v2 (Szegedy, Ioffe, Vanhoucke and Alemi, AAAI 2017), for images of 299x299."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from annotated_types import Len
from torch import Tensor, nn

from flnl.core.inputs import Kind
from flnl.models.layers import Classifier, Depth, DropRate, Shape, check_inputs

Kernel = tuple[int, int]


@dataclass(frozen=True)
class InceptionResNetV2:
    """A stem, three stages of residual Inception blocks, and between them reductions to half the size.

    54,383,314 parameters (60,544 floats of batch-norm statistics) for 50 classes: FedNoisy's network for WebVision.
    Layers, widths and scales are those of timm's ``inception_resnet_v2``, which was ported from the authors' program.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("image",)
    blocks: Annotated[Sequence[Depth], Len(3, 3)]  # in each stage
    dropout: DropRate  # before the linear layer

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for inputs of ``shape``.

        Raises:
            UserError: if the inputs do not have 3 channels or are smaller than 75x75: nothing would remain.
        """
        check_inputs("inception_resnet_v2", shape, smallest=75, channels=3)
        first, second, third = self.blocks
        body = nn.Sequential(
            _convolution(3, 32, (3, 3), stride=2, padded=False),
            _convolution(32, 32, (3, 3), padded=False),
            _convolution(32, 64, (3, 3)),
            nn.MaxPool2d(3, 2),
            _convolution(64, 80, (1, 1)),
            _convolution(80, 192, (3, 3), padded=False),
            nn.MaxPool2d(3, 2),
            Parallel(
                _chain(192, (96, 1)),
                _chain(192, (48, 1), (64, 5)),
                _chain(192, (64, 1), (96, 3), (96, 3)),
                nn.Sequential(nn.AvgPool2d(3, 1, padding=1, count_include_pad=False), _chain(192, (64, 1))),
            ),
            *(_block35() for _ in range(first)),
            Parallel(
                _chain(320, (384, 3), halved=True), _chain(320, (256, 1), (256, 3), (384, 3), halved=True), _pool()
            ),
            *(_block17() for _ in range(second)),
            Parallel(
                _chain(1088, (256, 1), (384, 3), halved=True),
                _chain(1088, (256, 1), (288, 3), halved=True),
                _chain(1088, (256, 1), (288, 3), (320, 3), halved=True),
                _pool(),
            ),
            *(_block8(0.2) for _ in range(third - 1)),
            _block8(1.0, last=True),
            _convolution(2080, 1536, (1, 1)),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Dropout(self.dropout),
        )
        return Classifier(body, nn.Linear(1536, num_classes))


class Parallel(nn.Module):
    """Branches that read the same inputs, their outputs side by side."""

    def __init__(self, *branches: nn.Module) -> None:
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, C, H, W] to [B, C', H', W'], with C' the sum over branches."""
        return torch.cat([branch(inputs) for branch in self.branches], 1)


class Residual(nn.Module):
    """``ReLU(x + scale · conv(branches(x)))``, the last block without ReLU; the 1x1 convolution has a bias, no norm.

    The branches have ``width`` channels together, x has ``channels``.
    """

    def __init__(self, branches: Parallel, width: int, channels: int, scale: float, last: bool = False) -> None:
        super().__init__()
        self.branches = branches
        self.up = nn.Conv2d(width, channels, 1)
        self.scale = scale
        self.last = last

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, C, H, W] to the same shape."""
        total: Tensor = inputs + self.scale * self.up(self.branches(inputs))
        return total if self.last else total.relu()


def _block35() -> Residual:
    branches = Parallel(_chain(320, (32, 1)), _chain(320, (32, 1), (32, 3)), _chain(320, (32, 1), (48, 3), (64, 3)))
    return Residual(branches, 128, 320, 0.17)


def _block17() -> Residual:
    branches = Parallel(_chain(1088, (192, 1)), _chain(1088, (128, 1), (160, (1, 7)), (192, (7, 1))))
    return Residual(branches, 384, 1088, 0.1)


def _block8(scale: float, last: bool = False) -> Residual:
    branches = Parallel(_chain(2080, (192, 1)), _chain(2080, (192, 1), (224, (1, 3)), (256, (3, 1))))
    return Residual(branches, 448, 2080, scale, last)


def _pool() -> nn.MaxPool2d:
    return nn.MaxPool2d(3, 2)


def _chain(channels: int, *layers: tuple[int, int | Kernel], halved: bool = False) -> nn.Sequential:
    """Convolutions in turn, given as (channels, kernel); with ``halved``, the last has stride 2 and no padding."""
    made = []
    for number, (wider, side) in enumerate(layers, start=1):
        kernel = (side, side) if isinstance(side, int) else side
        halving = halved and number == len(layers)
        made.append(_convolution(channels, wider, kernel, stride=1 + halving, padded=not halving))
        channels = wider
    return nn.Sequential(*made)


def _convolution(channels: int, wider: int, kernel: Kernel, *, stride: int = 1, padded: bool = True) -> nn.Sequential:
    """A convolution, batch norm and ReLU; padded so that the size stays, or not at all."""
    padding = (kernel[0] // 2, kernel[1] // 2) if padded else 0
    convolution = nn.Conv2d(channels, wider, kernel, stride, padding, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(wider, eps=1e-3), nn.ReLU())
