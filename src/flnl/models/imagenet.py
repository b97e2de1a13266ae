"""torchvision's residual networks for large images, from scratch or with pretrained weights.

Pretrained weights must match exactly, except for a head with another number of classes, which keeps its initial values.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from torch import nn
from torchvision import models

from flnl.core.inputs import Kind
from flnl.core.ranges import FromFiles, PathText
from flnl.models.layers import Classifier, Shape, check_inputs
from flnl.models.pretrained import fetched, fill, read


@dataclass(frozen=True)
class _ResNet:
    kinds: ClassVar[tuple[Kind, ...]] = ("image",)
    model: ClassVar[str]
    weights: ClassVar[Any]
    pretrained: Annotated[
        PathText, FromFiles("none")
    ]  # none, imagenet (IMAGENET1K_V1) or the path of a state dict in torchvision's names

    def __call__(self, shape: Shape, num_classes: int) -> Classifier:
        """The network for inputs of ``shape``.

        Raises:
            UserError: if the inputs do not have 3 channels, or the weights cannot be loaded or do not match.
        """
        check_inputs(self.model, shape, channels=3)
        network: Any = models.get_model(self.model.removesuffix("_imagenet"), num_classes=num_classes)
        if self.pretrained != "none":
            key = f"model.pretrained={self.pretrained}"
            if self.pretrained == "imagenet":
                state = fetched(self.weights, key)
            else:
                state = read(self.pretrained, key, "none or imagenet")
            fill(network, state, "fc", key, f"model={self.model}")
        head = network.fc
        network.fc = nn.Identity()
        return Classifier(network, head)


@dataclass(frozen=True)
class ResNet18ImageNet(_ResNet):
    """torchvision's ResNet-18 (7x7 stem, max-pool): 11,183,694 parameters for 14 classes."""

    model = "resnet18_imagenet"
    weights = models.ResNet18_Weights.IMAGENET1K_V1


@dataclass(frozen=True)
class ResNet50(_ResNet):
    """torchvision's ResNet-50: 23,536,718 parameters (53,120 batch-norm statistics) for 14 classes.

    FedCorr and the papers that compare with it start from ImageNet's weights on Clothing1M.
    """

    model = "resnet50"
    weights = models.ResNet50_Weights.IMAGENET1K_V1
