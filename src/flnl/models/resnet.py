"""Residual networks for small images: a 3x3 stem that keeps the size, and no max-pool.

torchvision's version (``flnl.models.imagenet``) is a different network: on 32x32 images, its stem leaves one pixel for
the last stage, so accuracies of the two are not comparable.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Len
from torch import Tensor, nn

from flnl.core.inputs import Kind
from flnl.core.ranges import PositiveCount
from flnl.models.layers import Classifier, Depth, Shape


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, added to the input; a 1x1 convolution adapts its shape if needed.

    As in He et al. 2016, the activation follows the sum.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            projection = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
            self.shortcut = nn.Sequential(OrderedDict(conv=projection, bn=nn.BatchNorm2d(outputs)))

    def forward(self, inputs: Tensor) -> Tensor:
        """[B, inputs, H, W] to [B, outputs, H / stride, W / stride], rounded up."""
        hidden = self.bn1(self.conv1(inputs)).relu()
        total: Tensor = self.bn2(self.conv2(hidden)) + self.shortcut(inputs)
        return total.relu()


@dataclass(frozen=True)
class ResNet:
    """Stages of basic blocks, each twice as wide as the previous and half its size, then global average pooling.

    Accepts inputs of any size. Parameters (floats of batch-norm statistics) on 3 channels: ResNet-18 11,173,962 (9,600)
    for 10 classes, ResNet-34 21,328,292 (17,024) for 100, ResNet-8 78,042 (928) for 10.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("image",)
    width: PositiveCount  # channels of the stem and of the first stage
    blocks: Annotated[Sequence[Depth], Len(1, 16)]  # number in each stage; a block has two layers

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for inputs of ``shape``."""
        layers: OrderedDict[str, nn.Module] = OrderedDict(
            conv1=nn.Conv2d(shape[0], self.width, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(self.width),
            relu=nn.ReLU(),
        )
        channels = self.width
        for stage, blocks in enumerate(self.blocks):
            wider, stride = self.width * 2**stage, 1 if stage == 0 else 2
            rest = (BasicBlock(wider, wider, 1) for _ in range(blocks - 1))
            layers[f"layer{stage + 1}"] = nn.Sequential(BasicBlock(channels, wider, stride), *rest)
            channels = wider
        layers.update(pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten())
        return Classifier(nn.Sequential(layers), nn.Linear(channels, num_classes))
