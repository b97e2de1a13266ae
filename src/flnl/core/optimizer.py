"""The optimisers of local training, as values of a configuration; ``flnl.engine.local.optimizer`` steps with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Interval

from flnl.core.ranges import Positive

Beta = Annotated[float, Interval(ge=0, lt=1)]
"""Decay of a running average, in [0, 1)."""


@dataclass(frozen=True)
class Buffer:
    """A tensor that an optimiser updates beside each parameter; it starts at zero."""

    name: str
    scalar: bool = False  # one float32 number instead of the parameter's shape


MOMENTUM = Buffer("momentum")
MOMENTS = (Buffer("exp_avg"), Buffer("exp_avg_sq"), Buffer("step", scalar=True))
"""Adam's running averages of the gradient and of its square, and the number of steps."""


@dataclass(frozen=True)
class Optimizer(ABC):
    """Base class. ``train.lr`` and ``train.weight_decay`` belong to every optimiser."""

    @abstractmethod
    def buffers(self, momentum: float) -> tuple[Buffer, ...]:
        """The buffers of each parameter; ``momentum`` is ``train.momentum``."""


@dataclass(frozen=True)
class SGD(Optimizer):
    """Stochastic gradient descent with ``train.momentum``; weight decay is added to the gradient."""

    def buffers(self, momentum: float) -> tuple[Buffer, ...]:
        """The momentum, unless it is 0."""
        return (MOMENTUM,) if momentum else ()


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba, ICLR 2015); weight decay is added to the gradient."""

    beta1: Beta  # of the running average of the gradient
    beta2: Beta  # of the running average of its square
    eps: Positive  # added to the root of the latter

    def buffers(self, momentum: float) -> tuple[Buffer, ...]:
        """Both running averages and the number of steps."""
        return MOMENTS


@dataclass(frozen=True)
class AdamW(Adam):
    """AdamW (Loshchilov and Hutter, ICLR 2019): Adam whose weight decay shrinks the parameters by itself."""
