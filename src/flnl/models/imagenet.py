"""torchvision's residual networks for large images, from scratch or with pretrained weights.

Pretrained weights must match exactly, except for a head with another number of classes, which keeps its initial values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from torch import nn
from torchvision import models

from flnl.core.ranges import FromFiles, PathText
from flnl.models.layers import Classifier, Shape, check_inputs
from flnl.models.pretrained import fetched, fill, read


@dataclass(frozen=True)
class ResNet18ImageNet:
    """torchvision's ResNet-18 (7x7 stem, max-pool): 11,183,694 parameters for 14 classes."""

    pretrained: Annotated[
        PathText, FromFiles("none")
    ]  # none, imagenet (IMAGENET1K_V1) or the path of a state dict in torchvision's names

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for inputs of ``shape``.

        Raises:
            UserError: if the inputs do not have 3 channels, or the weights cannot be loaded or do not match.
        """
        weights = models.ResNet18_Weights.IMAGENET1K_V1
        return _build("resnet18_imagenet", models.resnet18, weights, self.pretrained, shape, num_classes)


@dataclass(frozen=True)
class ResNet50:
    """torchvision's ResNet-50: 23,536,718 parameters (53,120 batch-norm statistics) for 14 classes.

    FedCorr and the papers that compare with it start from ImageNet's weights on Clothing1M.
    """

    pretrained: Annotated[
        PathText, FromFiles("none")
    ]  # none, imagenet (IMAGENET1K_V1) or the path of a state dict in torchvision's names

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for inputs of ``shape``.

        Raises:
            UserError: if the inputs do not have 3 channels, or the weights cannot be loaded or do not match.
        """
        weights = models.ResNet50_Weights.IMAGENET1K_V1
        return _build("resnet50", models.resnet50, weights, self.pretrained, shape, num_classes)


def _build(
    model: str, architecture: Callable[..., Any], weights: Any, pretrained: str, shape: Shape, num_classes: int
) -> Classifier:
    check_inputs(model, shape, channels=3)
    network = architecture(num_classes=num_classes)
    if pretrained != "none":
        key = f"model.pretrained={pretrained}"
        state = fetched(weights, key) if pretrained == "imagenet" else read(pretrained, key, "none or imagenet")
        fill(network, state, "fc", key, f"model={model}")
    head = network.fc
    network.fc = nn.Identity()
    return Classifier(network, head)
