"""A network's outputs by name: logits, features, and the logits of each network of a pair.

A network of a user's own has logits, its features if its last layer is called ``head``, and any others if it has a
method ``outputs``.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flnl.core.errors import UserError
from flnl.core.step import FEATURES, FIRST, LOGITS, SECOND
from flnl.models.layers import Classifier


class Pair(nn.Module):
    """Two networks of one kind as one module, for methods in which they teach each other.

    Its tensors are named ``first.*`` and ``second.*``, so that means over clients, checkpoints and traffic treat each
    network by itself. Its logits are the mean of both networks' logits: by these it is evaluated and handed out. Its
    features are those of both, side by side [B, 2d].
    """

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def outputs(self, inputs: Tensor) -> dict[str, Tensor]:
        """``first`` and ``second``, the networks' logits, and ``logits``, their mean; all [B, num_classes].

        And ``features``, if the networks have them.
        """
        first, second = outputs(self.first, inputs), outputs(self.second, inputs)
        named = {LOGITS: (first[LOGITS] + second[LOGITS]) / 2, FIRST: first[LOGITS], SECOND: second[LOGITS]}
        if FEATURES in first:
            named[FEATURES] = torch.cat([first[FEATURES], second[FEATURES]], 1)
        return named

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [B, num_classes] of ``inputs`` [B, C, H, W]."""
        mean: Tensor = (self.first(inputs) + self.second(inputs)) / 2
        return mean


def networks(make: Callable[[], nn.Module], count: int) -> nn.Module:
    """One network, or a ``Pair`` of two that are made one after the other.

    Raises:
        ValueError: if ``count`` is neither 1 nor 2.
        UserError: if both calls of ``make`` return networks that share parameters.
    """
    if count not in (1, 2):
        raise ValueError(f"{count} networks: a client trains one or two")
    if count == 1:
        return make()
    first, second = make(), make()
    if {id(p) for p in first.parameters()} & {id(p) for p in second.parameters()}:
        raise UserError("method.networks=2 needs two networks, but those that the model makes share parameters")
    return Pair(first, second)


def passed(module: nn.Module, name: str) -> int:
    """Number of networks that inputs pass for an output of this name."""
    return 2 if isinstance(module, Pair) and name not in (FIRST, SECOND) else 1


def has_outputs(module: nn.Module) -> bool:
    """Whether the module has a method ``outputs``; a layer of this name is none."""
    return callable(getattr(type(module), "outputs", None))


def why_no_features(module: nn.Module) -> str | None:
    """Why a network has no features, for a part that needs them; None if it has them, or says its outputs itself."""
    if isinstance(module, Classifier | Pair) or has_outputs(module) or "head" in module._modules:
        return None
    return "it needs features, the input of a last layer called head, and this network has no such layer"


def why_features_stay(module: nn.Module) -> str | None:
    """Why training changes no feature of a network; None if it does, or the network says its outputs itself."""
    trained = (name for name, p in module.named_parameters() if p.requires_grad and "head" not in name.split("."))
    unknown = has_outputs(module) and not isinstance(module, Classifier | Pair)
    if unknown or next(trained, None) is not None:
        return None
    return (
        "nothing before this network's last layer is trained: choose a model with trained layers before it, such as "
        "model=mlp"
    )


def outputs(module: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """All outputs of ``module`` on ``inputs`` by name, in one pass."""
    if isinstance(module, Classifier | Pair):
        return module.outputs(inputs)
    read: list[Tensor] = []  # what the last layer reads
    head = module._modules.get("head")
    hook = None if head is None else head.register_forward_pre_hook(lambda _, given: read.extend(given[:1]))
    try:
        named: dict[str, Tensor] = module.outputs(inputs) if has_outputs(module) else {LOGITS: module(inputs)}  # type: ignore[operator]
    finally:
        if hook is not None:
            hook.remove()
    return {FEATURES: read[0], **named} if read else named


def output(module: nn.Module, name: str, inputs: Tensor) -> Tensor:
    """One output of ``module`` by name, with no more passes than it takes.

    Raises:
        LookupError: if the network has no such output.
    """
    if isinstance(module, Pair) and name in (FIRST, SECOND):
        module, name = (module.first if name == FIRST else module.second), LOGITS
    if name == LOGITS:
        logits: Tensor = module(inputs)
        return logits
    return named(outputs(module, inputs), name)


def named(outputs: Mapping[str, Tensor], name: str) -> Tensor:
    """One of a network's outputs by name.

    Raises:
        LookupError: if the network has no such output.
    """
    if name not in outputs:
        raise LookupError(f"the network has no output {name!r}; there are {', '.join(outputs)}")
    return outputs[name]


class _Named(nn.Module):
    """A module whose call names the output: ``functional_call`` calls a module in no other way."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, name: str | None, inputs: Tensor) -> Any:
        """One output, or all of them by name."""
        return outputs(self.module, inputs) if name is None else output(self.module, name, inputs)


def outputs_with(module: nn.Module, tensors: Mapping[str, Tensor], inputs: Tensor) -> dict[str, Tensor]:
    """As ``outputs``, with ``tensors`` instead of parameters and buffers of these names."""
    named: dict[str, Tensor] = _called(module, tensors, None, inputs)
    return named


def output_with(module: nn.Module, tensors: Mapping[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    """As ``output``, with ``tensors`` instead of parameters and buffers of these names."""
    if name == LOGITS:  # a module's own call gives them, without the wrapper
        logits: Tensor = functional_call(module, dict(tensors), (inputs,))
        return logits
    tensor: Tensor = _called(module, tensors, name, inputs)
    return tensor


def _called(module: nn.Module, tensors: Mapping[str, Tensor], name: str | None, inputs: Tensor) -> Any:
    return functional_call(_Named(module), {f"module.{key}": t for key, t in tensors.items()}, (name, inputs))
