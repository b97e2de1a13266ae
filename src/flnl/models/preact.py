"""Residual networks with pre-activation (He et al. 2016b) for small images, and wide ones (Zagoruyko and Komodakis).

Published forms of "PreAct ResNet-18" differ in the normalisation outside of the blocks. Without one before the pool,
features grow with depth, so what depends on the size of logits or features differs between them.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal

from annotated_types import Len
from torch import Tensor, nn

from flnl.core.inputs import Kind
from flnl.core.ranges import PositiveCount
from flnl.models.layers import Classifier, Depth, DropRate, Shape


class Block(nn.Module):
    """Batch norm and ReLU before each of two 3x3 convolutions; what is added is the input, or a 1x1 convolution.

    The 1x1 convolution reads the normalised and rectified input, and the first 3x3 one has the stride. As
    ``released``, the 1x1 convolution reads the input itself, the second one has the stride, and all have biases.
    """

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float, momentum: float, released: bool) -> None:
        super().__init__()
        first, second = (1, stride) if released else (stride, 1)
        self.bn1 = nn.BatchNorm2d(inputs, momentum=momentum)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, first, padding=1, bias=released)
        self.dropout = nn.Dropout(dropout)
        self.bn2 = nn.BatchNorm2d(outputs, momentum=momentum)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, second, padding=1, bias=released)
        self.shortcut: nn.Conv2d | None = None
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=released)
        self._reads_input = released

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, inputs, H, W] to [B, outputs, H / stride, W / stride], rounded up."""
        active = self.bn1(inputs).relu()
        hidden: Tensor = self.conv2(self.bn2(self.dropout(self.conv1(active))).relu())
        if self.shortcut is None:
            return hidden + inputs
        added: Tensor = self.shortcut(inputs if self._reads_input else active)
        return hidden + added


@dataclass(frozen=True)
class PreActResNet:
    """Stages of pre-activation blocks, the first at full size and each further one at half of it, then an average pool.

    Parameters (floats of batch-norm statistics) on 3x32x32 and 10 classes, ResNet-18: 11,171,274 (6,912) with ``norm:
    stem``, the form of DivideMix; 11,171,146 (6,784) with ``none``, and 11,172,170 (7,808) with ``final``, that of He
    et al. Wide ResNets have ``final`` and a stem that is narrower than the first stage: WRN-28-10 36,479,194 (17,952).

    ``released`` is the wide network of FedNoisy's program: see ``Block``; the stem has a bias, too, and batch norms
    take 0.9 of each batch into their running statistics, where torch's default is 0.1.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("image",)
    stem: PositiveCount  # channels of the first convolution
    width: PositiveCount  # channels of the first stage; doubles every stage
    blocks: Annotated[Sequence[Depth], Len(1, 16)]  # number in each stage; a block has two layers
    norm: Literal["stem", "none", "final"]  # batch norm and ReLU behind the stem, nowhere, or before the pool
    dropout: DropRate  # between the convolutions of each block
    init: Literal["torch", "kaiming"]  # of convolutions: torch's default, or normal with variance 2 / fan-out
    released: bool

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for inputs of ``shape``."""
        momentum = 0.9 if self.released else 0.1
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(shape[0], self.stem, 3, padding=1, bias=self.released)
        )
        if self.norm == "stem":
            layers.update(bn1=nn.BatchNorm2d(self.stem, momentum=momentum), relu=nn.ReLU())
        channels = self.stem
        for stage, blocks in enumerate(self.blocks):
            outputs = self.width * 2**stage
            strides = [1 if stage == 0 else 2, *[1] * (blocks - 1)]
            widths = pairwise([channels, *[outputs] * blocks])
            layers[f"layer{stage + 1}"] = nn.Sequential(
                *(
                    Block(wide, wider, stride, self.dropout, momentum, self.released)
                    for (wide, wider), stride in zip(widths, strides, strict=True)
                )
            )
            channels = outputs
        if self.norm == "final":
            layers.update(bn=nn.BatchNorm2d(channels, momentum=momentum), relu=nn.ReLU())
        layers.update(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
        body = nn.Sequential(layers)
        if self.init == "kaiming":
            for layer in body.modules():
                if isinstance(layer, nn.Conv2d):
                    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
        return Classifier(body, nn.Linear(channels, num_classes))
