"""FedNova's message: the length ‖a_k‖₁ of a client's steps, counted in gradients."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import Interval

from flnl.core.messages import ClientTask, Fit
from flnl.core.model import Model
from flnl.core.parts import Exchange
from flnl.core.payload import Payload
from flnl.core.ranges import NonNegative
from flnl.core.stored import stored


@stored("LocalSteps")
class LocalSteps:
    """Sent to the server: a client's number of steps, and what they add up to."""

    steps: int
    length: NonNegative  # ‖a_k‖₁; the steps of plain SGD


@dataclass(frozen=True)
class StepLengths(Exchange):
    """‖a_k‖₁ of each client's visit (Wang et al. 2020): how often its steps count each of its gradients, in all.

    It is the way of one scalar whose gradient is 1 at every step, divided by the learning rate: τ for τ steps of plain
    SGD, more with momentum, less with a proximal term. Weight decay and clipping are part of the gradient.
    """

    reports: ClassVar[tuple[type, ...]] = (LocalSteps,)

    momentum: Annotated[float, Interval(ge=0, lt=1)]  # that of the local optimiser
    mu: NonNegative  # that of the local objective's proximal term, μ/2 ‖θ - θ_t‖²; 0 without one

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        return Payload(LocalSteps(fit.steps, length(fit.steps, fit.lr, self.momentum, self.mu))), Payload()


def length(steps: int, lr: float, momentum: float = 0.0, mu: float = 0.0) -> float:
    """‖a‖₁ of so many steps at the learning rate ``lr``, by simulation of one scalar.

    >>> length(7, 0.1), round(length(7, 0.1, 0.9), 6), round(length(7, 0.1, 0.0, 0.5), 6)
    (7.0, 23.046721, 6.033254)
    """
    if not momentum and not mu * lr:
        return float(steps)
    place = buffer = 0.0  # of the scalar, in units of -lr
    for _ in range(steps):
        buffer = momentum * buffer + 1 - lr * mu * place
        place += buffer
    return place
