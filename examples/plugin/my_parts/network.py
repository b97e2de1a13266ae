"""A small network of separable convolutions."""

from dataclasses import dataclass

from torch import nn

from flnl.core.ranges import PositiveCount
from flnl.models.layers import Classifier, Shape


@dataclass(frozen=True)
class Separable:
    """A stem and ``depth`` depthwise separable convolutions of ``width`` channels, averaged over the image."""

    width: PositiveCount
    depth: PositiveCount

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for inputs of ``shape``, (channels, height, width)."""
        layers: list[nn.Module] = [nn.Conv2d(shape[0], self.width, 3, padding=1), nn.ReLU()]
        for _ in range(self.depth):
            layers += [
                nn.Conv2d(self.width, self.width, 3, padding=1, groups=self.width),
                nn.Conv2d(self.width, self.width, 1),
                nn.ReLU(),
            ]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        return Classifier(nn.Sequential(*layers), nn.Linear(self.width, num_classes))
