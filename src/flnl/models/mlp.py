"""Fully connected networks, for inputs of any size."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import ClassVar

from torch import nn

from flnl.core.inputs import Kind
from flnl.core.ranges import PositiveCount
from flnl.models.layers import Classifier, DropRate, Shape


@dataclass(frozen=True)
class MLP:
    """Linear layers with ReLU between them; without hidden layers, softmax regression.

    4,810 parameters with 64 hidden units on 1x8x8 and 10 classes.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("image", "vector")
    hidden: Sequence[PositiveCount]  # units of each hidden layer
    dropout: DropRate  # after each hidden layer

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for inputs of ``shape``."""
        layers: list[nn.Module] = [nn.Flatten()]
        width = prod(shape)
        for units in self.hidden:
            layers += [nn.Linear(width, units), nn.ReLU(), nn.Dropout(self.dropout)]
            width = units
        return Classifier(nn.Sequential(*layers), nn.Linear(width, num_classes))
