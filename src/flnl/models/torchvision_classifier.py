"""Any of torchvision's classifiers by its name, from scratch or with pretrained weights."""

from __future__ import annotations

import re
from collections import OrderedDict
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from pydantic import AfterValidator
from torch import Tensor, nn
from torch.func import functional_call
from torchvision import models

from flnl.console.suggestions import did_you_mean
from flnl.core.errors import UserError
from flnl.core.images import IMAGENET
from flnl.core.inputs import Kind
from flnl.core.ranges import FromFiles, PathText
from flnl.models.layers import Classifier, Shape, check_inputs
from flnl.models.pretrained import fetched, fill, read
from flnl.models.probe import SAMPLES, check_logits

AUXILIARY = {"googlenet": ("aux1.", "aux2."), "inception_v3": ("AuxLogits.",)}
"""Classifiers of inner layers, which train with the last one where a program adds their losses: they are left out."""


def _is_classifier(name: str | None) -> str:
    example = "as in model.name=efficientnet_b0"
    if name is None:
        raise ValueError(f"must be the name of one of torchvision's classifiers, {example}")
    classifiers = models.list_models(module=models)
    if name in classifiers:
        return name
    if name in models.list_models():
        kind = models.get_model_builder(name).__module__.split(".")[2]
        raise ValueError(f"is one of torchvision.models.{kind}; name a classifier of images, {example}")
    hint = did_you_mean(name, classifiers, f"name one of its {len(classifiers)}, {example}")
    raise ValueError(f"torchvision has no such classifier; {hint}")


@dataclass(frozen=True)
class TorchvisionClassifier:
    """The network of this name in torchvision, with ``num_classes`` outputs.

    Its last linear layer is the head; its inputs are the features. SqueezeNet ends in a convolution instead, so it has
    no features. Dropout and stochastic depth have torchvision's rates.
    """

    kinds: ClassVar[tuple[Kind, ...]] = ("image",)
    name: Annotated[str | None, AfterValidator(_is_classifier)]
    weights: Annotated[PathText | None, FromFiles(None)]  # null, torchvision's by name, or the path of a state dict

    def __call__(self, shape: Shape, num_classes: int) -> nn.Module:
        """The network for inputs of ``shape``.

        Raises:
            UserError: if the network does not take inputs of ``shape``, or the weights cannot be loaded or do not fit.
        """
        try:
            name = _is_classifier(self.name)
        except ValueError as error:
            raise UserError(f"model.name={self.name}: {error}") from error
        model = f"model.name={name}"
        check_inputs(f"torchvision {model}", shape, channels=3)
        weights = self._weights(name)
        pretrained = self.weights is not None
        network = _network(name, num_classes, pretrained=pretrained)
        path, head = _last(network, num_classes, model)
        if self.weights is not None:
            key = f"model.weights={self.weights}"
            state = read(self.weights, key, self._others(name)) if weights is None else fetched(weights, key)
            fill(network, _renamed(name, state), path, key, model)
        _check(network, shape, num_classes, model)
        if not isinstance(head, nn.Linear):
            return network
        above, _, last = path.rpartition(".")
        setattr(network.get_submodule(above), last, nn.Identity())
        if name in AUXILIARY:
            network = nn.Sequential(_Conversion(pretrained=pretrained), network)
        return Classifier(network, head)

    def _weights(self, name: str) -> Any:
        """The weights that torchvision has; None if there are none to load, or those of a file.

        Raises:
            UserError: if ``weights`` names neither weights of this network nor anything like a path.
        """
        if self.weights is None:
            return None
        known = models.get_model_weights(name).__members__
        if self.weights in known:
            return known[self.weights]
        if re.fullmatch(r"\w+", self.weights):
            raise UserError(
                f"model.weights={self.weights}: {name} has no such weights; give {self._others(name)}, or the path of "
                "a state dict"
            )
        return None

    def _others(self, name: str) -> str:
        return ", ".join(("null", *models.get_model_weights(name).__members__))


def _network(name: str, num_classes: int, *, pretrained: bool) -> nn.Module:
    options: dict[str, Any] = {}
    if name in AUXILIARY:
        options = {"aux_logits": False, "init_weights": not pretrained, "transform_input": False}
    network: nn.Module = models.get_model_builder(name)(num_classes=num_classes, **options)
    return network


class _Conversion(nn.Module):
    """Converts inputs normalised as ImageNet's for weights that were trained on inputs from -1 to 1.

    torchvision's networks have a flag for this, which their state does not contain; buffers are in a model's file.
    Without pretrained weights, inputs pass unchanged.
    """

    scale: Tensor  # [3, 1, 1]
    shift: Tensor  # [3, 1, 1]

    def __init__(self, *, pretrained: bool) -> None:
        super().__init__()
        mean, std = (torch.tensor(channels).reshape(-1, 1, 1) for channels in IMAGENET)
        self.register_buffer("scale", std / 0.5 if pretrained else torch.ones_like(std))
        self.register_buffer("shift", (mean - 0.5) / 0.5 if pretrained else torch.zeros_like(mean))

    def forward(self, inputs: Tensor) -> Tensor:
        """The inputs [B, 3, H, W], converted."""
        return inputs * self.scale + self.shift


def _last(network: nn.Module, num_classes: int, model: str) -> tuple[str, nn.Module]:
    """The name of the last layer with weights, and the layer."""
    layers = [(name, one) for name, one in network.named_modules() if isinstance(one, nn.Linear | nn.Conv2d)]
    name, layer = layers[-1]
    if len(layer.weight) != num_classes:
        raise UserError(f"{model} does not end in a layer of {num_classes} outputs in this version of torchvision")
    return name, layer


def _renamed(name: str, state: Any) -> Any:
    """A state dict as the network names its tensors: without auxiliary classifiers, and without old names."""
    if not isinstance(state, dict) or not (name in AUXILIARY or name.startswith("densenet")):
        return state
    tensors = OrderedDict[str, Any]()
    for key, tensor in state.items():
        if str(key).startswith(AUXILIARY.get(name, ())):
            continue
        # DenseNet's files are older than the rule that names have no dots: norm.1 became norm1.
        tensors[re.sub(r"(denselayer\d+\.(?:norm|conv))\.(?=[12]\.)", r"\1", str(key))] = tensor
    if hasattr(state, "_metadata"):
        tensors._metadata = state._metadata  # type: ignore[attr-defined]
    return tensors


def _check(network: nn.Module, shape: Shape, num_classes: int, model: str) -> None:
    """Check the sizes of all layers' inputs and outputs, without computing anything.

    Raises:
        UserError: if the network does not take inputs of ``shape``.
    """
    tensors = {name: tensor.to("meta") for name, tensor in network.state_dict().items()}

    def forward(inputs: Tensor) -> Tensor:
        logits: Tensor = functional_call(network, tensors, (inputs,))
        return logits

    network.eval()
    check_logits(forward, torch.zeros(SAMPLES, *shape, device="meta"), num_classes, model, "")
    network.train()
