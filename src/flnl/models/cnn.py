"""A small convolutional network without batch norm, cheap enough to train many clients at once."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from flnl.core.inputs import Kind
from flnl.core.ranges import PositiveCount
from flnl.models.layers import Classifier, DropRate, Shape, check_inputs


@dataclass(frozen=True)
class CNN:
    """3x3 convolutions that keep the size, each followed by ReLU and a halving max-pool, then one linear layer.

    6,090 parameters with widths 16 and 32 on 1x8x8 and 10 classes.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("image",)
    widths: Sequence[PositiveCount]  # channels of each of the n convolutions; images have sides of at least 2**n
    dropout: DropRate  # before the linear layer

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for inputs of ``shape``.

        Raises:
            UserError: if the inputs are too small for the number of max-pools.
        """
        check_inputs("cnn", shape, smallest=2 ** len(self.widths))
        layers: list[nn.Module] = []
        channels, height, width = shape
        for wider in self.widths:
            layers += [nn.Conv2d(channels, wider, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)]
            channels, height, width = wider, height // 2, width // 2
        body = nn.Sequential(*layers, nn.Flatten(), nn.Dropout(self.dropout))
        return Classifier(body, nn.Linear(channels * height * width, num_classes))
