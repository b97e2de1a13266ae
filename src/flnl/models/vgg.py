"""VGG without batch norm: VGG-11 for ImageNet, and VGG-11 and VGG-16 reduced for 32x32 images.

With eight convolutions and no batch norm, the signal would vanish under torch's default initialisation, so the
convolutions are initialised as in He et al. 2015.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import sqrt
from typing import ClassVar

from torch import Tensor, nn
from torchvision import models

from flnl.core.inputs import Kind
from flnl.models.layers import Classifier, DropRate, Shape, check_inputs

# Simonyan and Zisserman 2015, Table 1, columns A and D: the convolutions' channels between max-pools.
VGG11_CONVOLUTIONS = ((64,), (128,), (256,) * 2, (512,) * 2, (512,) * 2)
VGG16_CONVOLUTIONS = ((64,) * 2, (128,) * 2, (256,) * 3, (512,) * 3, (512,) * 3)


@dataclass(frozen=True)
class VGG11:
    """torchvision's VGG-11 with ``num_classes`` outputs: 128,807,306 parameters for 10 classes.

    Its 7x7 average pool replicates the single pixel that remains of a 32x32 image, so on CIFAR most of its parameters
    receive copies.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("image",)
    dropout: DropRate  # after both hidden linear layers

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for inputs of ``shape``.

        Raises:
            UserError: if the inputs do not have 3 channels or are smaller than 32x32.
        """
        check_inputs("vgg11", shape, smallest=32, channels=3)
        network = models.vgg11(num_classes=num_classes, dropout=self.dropout)
        network.avgpool = _Pool()
        # The head is the last layer of ``classifier``; setting ``fc`` on a VGG would add a layer that is never called.
        head = network.classifier[-1]
        network.classifier[-1] = nn.Identity()
        return Classifier(network, head)


@dataclass(frozen=True)
class VGG11Cifar:
    """VGG-11's convolutions with linear layers of 512 units, as in FedNoisy's benchmark.

    9,750,922 parameters on 3x32x32 and 10 classes; the first linear layer follows the size of the inputs.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("image",)
    name: ClassVar[str] = "vgg11_cifar"
    convolutions: ClassVar[Sequence[Sequence[int]]] = VGG11_CONVOLUTIONS
    dropout: DropRate  # before both hidden linear layers

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for inputs of ``shape``.

        Raises:
            UserError: if the inputs are smaller than 32x32: nothing would remain after the fifth pool.
        """
        check_inputs(self.name, shape, smallest=32)
        layers: list[nn.Module] = []
        channels, height, width = shape
        for group in self.convolutions:
            for wider in group:
                layers += [_convolution(channels, wider), nn.ReLU()]
                channels = wider
            layers.append(nn.MaxPool2d(2))
            height, width = height // 2, width // 2
        body = nn.Sequential(
            *layers,
            nn.Flatten(),
            nn.Dropout(self.dropout),
            nn.Linear(channels * height * width, 512),
            nn.ReLU(),
            nn.Dropout(self.dropout),
            nn.Linear(512, 512),
            nn.ReLU(),
        )
        return Classifier(body, nn.Linear(512, num_classes))


@dataclass(frozen=True)
class VGG16Cifar(VGG11Cifar):
    """VGG-16's convolutions with linear layers of 512 units: FedNoisy's network for CIFAR-10 and SVHN.

    15,245,130 parameters on 3x32x32 and 10 classes.
    """

    name = "vgg16_cifar"
    convolutions = VGG16_CONVOLUTIONS


class _Pool(nn.Module):
    """The 7x7 average pool. A single pixel is copied as a view, whose gradient a GPU sums in a fixed order."""

    def __init__(self) -> None:
        super().__init__()
        self.average = nn.AdaptiveAvgPool2d(7)

    def forward(self, input: Tensor) -> Tensor:
        """``input`` [B, C, H, W] to [B, C, 7, 7]."""
        one = input.shape[-2:] == (1, 1)
        return input.expand(-1, -1, 7, 7) if one else self.average(input)


def _convolution(channels: int, wider: int) -> nn.Conv2d:
    """A 3x3 convolution that keeps the size; weights are normal with variance 2 / fan-out, biases zero."""
    layer = nn.Conv2d(channels, wider, 3, padding=1)
    nn.init.normal_(layer.weight, std=sqrt(2 / (9 * wider)))
    assert layer.bias is not None
    nn.init.zeros_(layer.bias)
    return layer
