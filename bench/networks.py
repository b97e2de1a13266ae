"""A network that only the benchmark has."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn

from flnl.models.layers import Classifier, Shape


@dataclass(frozen=True)
class PublicCNN:
    """The CNN of pfl-research's benchmarks on CIFAR-10 (Granqvist et al., NeurIPS 2024): 1,626,442 parameters there.

    Two 3x3 convolutions without padding, a max-pool, and two linear layers, with dropout before both.
    """

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for inputs of ``shape``."""
        channels, height, width = shape
        features = 64 * ((height - 4) // 2) * ((width - 4) // 2)
        body = nn.Sequential(
            *(nn.Conv2d(channels, 32, 3), nn.ReLU(), nn.Conv2d(32, 64, 3), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Dropout(0.25), nn.Flatten(), nn.Linear(features, 128), nn.ReLU(), nn.Dropout(0.5)),
        )
        return Classifier(body, nn.Linear(128, num_classes))
