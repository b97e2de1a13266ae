"""What every network of this package shares: its form, the range of a dropout rate and the check of its inputs.

A network is a body that gives features and a linear head that classifies them; its forward pass is a pure function of
parameters, buffers and inputs: no branch on values, nothing changed but batch-norm buffers. Beside its layers it acts
on each channel alone, so that many clients can be run as one network.
"""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

import torch
from annotated_types import Interval
from torch import Tensor, nn
from torch.func import functional_call

from flnl.core.errors import UserError
from flnl.core.step import FEATURES, FIRST, LOGITS, SECOND

Shape = tuple[int, int, int]
"""(C, H, W) of the inputs."""

DropRate = Annotated[float, Interval(ge=0, lt=1)]
"""The probability that dropout zeroes a unit; zero draws nothing."""


class Classifier(nn.Module):
    """A network in two parts, a body and a linear head: ``head(body(inputs))``.

    The head's parameters are named ``head.*`` and the others ``body.*`` whatever the architecture, for methods that
    treat the last layer apart.
    """

    def __init__(self, body: nn.Module, head: nn.Linear) -> None:
        super().__init__()
        self.body = body
        self.head = head

    def features(self, inputs: Tensor) -> Tensor:
        """What the head reads, [B, d]: the penultimate features of ``inputs`` [B, C, H, W]."""
        features: Tensor = self.body(inputs)
        return features

    def outputs(self, inputs: Tensor) -> dict[str, Tensor]:
        """``logits`` [B, num_classes] and ``features`` [B, d] of ``inputs`` [B, C, H, W]."""
        features = self.features(inputs)
        return {LOGITS: self.head(features), FEATURES: features}

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [B, num_classes] of ``inputs`` [B, C, H, W]."""
        logits: Tensor = self.head(self.features(inputs))
        return logits


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
        """``first`` and ``second``, the networks' logits, and ``logits``, their mean; all [B, num_classes]."""
        first, second = self.first(inputs), self.second(inputs)
        return {LOGITS: (first + second) / 2, FIRST: first, SECOND: second}

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [B, num_classes] of ``inputs`` [B, C, H, W]."""
        return self.outputs(inputs)[LOGITS]


def networks(make: Callable[[], nn.Module], count: int) -> nn.Module:
    """One network, or a ``Pair`` of two that are made one after the other.

    Raises:
        ValueError: if ``count`` is neither 1 nor 2.
    """
    if count not in (1, 2):
        raise ValueError(f"{count} networks: a client trains one or two")
    return make() if count == 1 else Pair(make(), make())


def outputs(module: nn.Module, inputs: Tensor) -> dict[str, Tensor]:
    """All outputs of ``module`` on ``inputs`` by name; of one that names none its logits."""
    if isinstance(module, Classifier | Pair):
        return module.outputs(inputs)
    return {LOGITS: module(inputs)}


def output(module: nn.Module, name: str, inputs: Tensor) -> Tensor:
    """One output of ``module`` by name, with no more passes than it takes.

    Raises:
        LookupError: if the network has no such output.
    """
    alone = module
    if isinstance(module, Pair):
        if name == FEATURES:
            return torch.cat([output(each, name, inputs) for each in (module.first, module.second)], 1)
        if name in (FIRST, SECOND):
            alone, name = (module.first if name == FIRST else module.second), LOGITS
    if name == LOGITS:
        logits: Tensor = alone(inputs)
        return logits
    every = outputs(module, inputs)
    if name not in every:
        raise LookupError(f"the network has no output {name!r}; there are {', '.join(every)}")
    return every[name]


class _Named(nn.Module):
    """A module whose call names the output: ``functional_call`` calls a module in no other way."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, name: str | None, inputs: Tensor) -> Any:
        """One output, or all of them by name."""
        return outputs(self.module, inputs) if name is None else output(self.module, name, inputs)


def outputs_with(module: nn.Module, tensors: Mapping[str, Tensor], inputs: Tensor) -> dict[str, Tensor]:
    """As ``outputs``, with ``tensors`` in the place of parameters and buffers of these names."""
    found: dict[str, Tensor] = _called(module, tensors, None, inputs)
    return found


def output_with(module: nn.Module, tensors: Mapping[str, Tensor], name: str, inputs: Tensor) -> Tensor:
    """As ``output``, with ``tensors`` in the place of parameters and buffers of these names."""
    found: Tensor = _called(module, tensors, name, inputs)
    return found


def _called(module: nn.Module, tensors: Mapping[str, Tensor], name: str | None, inputs: Tensor) -> Any:
    return functional_call(_Named(module), {f"module.{key}": t for key, t in tensors.items()}, (name, inputs))


def has_batch_norm(module: nn.Module) -> bool:
    """Whether any layer normalises by the statistics of the batch, so that samples of a batch affect each other."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
    return any(isinstance(layer, kinds) for layer in module.modules())


def check_inputs(model: str, shape: Shape, *, smallest: int = 1, channels: int | None = None) -> None:
    """Refuse inputs that ``model`` (the name in ``conf/model``) cannot take.

    Raises:
        UserError: if a side is shorter than ``smallest``, or if the number of channels is not ``channels``.
    """
    needs = []
    if channels is not None and shape[0] != channels:
        needs.append(f"{channels} channels")
    if min(shape[1:]) < smallest:
        needs.append(f"inputs of at least {smallest}x{smallest}")
    if needs:
        found = "x".join(map(str, shape))
        raise UserError(
            f"model={model} needs {' and '.join(needs)}; the dataset has {found} (channels x height x width)"
        )
