"""torchvision's residual networks for large images, from scratch or with pretrained weights.

Pretrained weights must match exactly, except for a head with another number of classes, which keeps its initial values.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
from torch import Tensor, nn
from torchvision import models

from flnl.core.errors import UserError
from flnl.core.ranges import FromFiles, PathText
from flnl.models.layers import Classifier, Shape, check_inputs


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
        state = _imagenet(weights) if pretrained == "imagenet" else _local(pretrained)
        _load(network, state, model, pretrained)
    head = network.fc
    network.fc = nn.Identity()
    return Classifier(network, head)


def _imagenet(weights: Any) -> Any:
    """Load torchvision's weights from torch.hub's cache, or download them."""
    file = Path(torch.hub.get_dir(), "checkpoints", Path(weights.url).name)
    try:
        return weights.get_state_dict(check_hash=True, map_location="cpu", weights_only=True)
    except Exception as error:  # network, disk and damaged files raise many kinds of errors
        raise UserError(
            f"model.pretrained=imagenet needs {file.name}, which could not be downloaded or read "
            f"({_line(error)}); put {weights.url} at {file}"
        ) from error


def _local(path: str) -> Any:
    """Load the file at ``path``, restricted to plain values and tensors."""
    try:
        return torch.load(Path(path).expanduser(), map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise UserError(
            f"model.pretrained={path} is not a file; give none, imagenet or the path of a state dict"
        ) from error
    except Exception as error:  # damaged files raise many kinds of errors
        raise UserError(
            f"model.pretrained={path} cannot be read as weights ({_line(error)}); "
            "give a state dict of tensors written by torch.save"
        ) from error


def _load(network: nn.Module, state: Any, model: str, pretrained: str) -> None:
    """Load the tensors of ``state`` into ``network``, except for a head of another size.

    Raises:
        UserError: if any other tensor is missing, unknown or of another shape.
    """
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        held = f"{_few(state)} that are not all tensors" if isinstance(state, dict) else f"a {type(state).__name__}"
        raise UserError(f"model.pretrained={pretrained} holds {held}; give a state dict of tensors by name")
    initial = network.state_dict()
    tensors = dict(state)
    if any(name in tensors and tensors[name].shape != initial[name].shape for name in ("fc.weight", "fc.bias")):
        tensors |= {name: initial[name] for name in ("fc.weight", "fc.bias")}
    # Files from before torch 0.4.1 lack num_batches_tracked, which nothing reads.
    missing = [name for name in initial if name not in tensors and not name.endswith("num_batches_tracked")]
    unknown = [name for name in tensors if name not in initial]
    reshaped = [name for name in tensors if name in initial and tensors[name].shape != initial[name].shape]
    wrong = {"without": missing, "with unknown": unknown, "with other shapes of": reshaped}
    if any(wrong.values()):
        differences = ", ".join(f"{what} {_few(names)}" for what, names in wrong.items() if names)
        raise UserError(f"model.pretrained={pretrained} does not fit model={model}: the file is {differences}")
    network.load_state_dict(tensors, strict=False)


def _few(names: Any) -> str:
    """The first few names."""
    first = list(map(str, names))
    return ", ".join(first[:3]) + (f" and {len(first) - 3} more" if len(first) > 3 else "")


def _line(error: Exception) -> str:
    """An error on one line, beginning with its type."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
