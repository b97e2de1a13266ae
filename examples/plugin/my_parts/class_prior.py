"""An exchange, and the loss that uses it: the frequencies of classes in the whole federation."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flnl.core.execution import ClientJob
from flnl.core.messages import ClientTask, Clock, Opened
from flnl.core.model import Model
from flnl.core.parts import Exchange, LossTerm
from flnl.core.payload import Params, Payload
from flnl.core.ranges import NonNegative
from flnl.core.step import Step
from flnl.core.stored import stored
from flnl.parts.losses.targets import cross_entropy


@stored("my_parts.LabelCounts")  # its name in messages between sites
class LabelCounts:
    """Sent to the server, once."""

    values: Tensor  # int64 [K], the client's labels of each class


@stored("my_parts.ClassPrior")  # it is also the exchange's state, which checkpoints hold
class ClassPrior:
    """Sent to every client."""

    shares: Tensor  # float64 [K], of the labels of all clients; empty until clients have reported


@dataclass(frozen=True)
class CountLabels:
    """Job: count the labels that a client holds."""

    def __call__(self, network: Model, task: ClientTask) -> Opened:
        """Report the counts."""
        return Opened(task.client, Payload(LabelCounts(torch.bincount(task.labels, minlength=network.num_classes))))


@dataclass(frozen=True)
class ClassPriors(Exchange):
    """Before the first round, clients send how many labels of each class they hold; all get the sum, as shares.

    The counts are private: send them through secure aggregation, which the sum allows.
    """

    sends: ClassVar[tuple[type, ...]] = (ClassPrior,)
    reports: ClassVar[tuple[type, ...]] = (LabelCounts,)
    reveals: ClassVar[Mapping[type, float]] = {LabelCounts: math.inf}  # in the clear: at a site, it must be allowed

    def init(self, clients: int, params: Params) -> ClassPrior:
        """Nothing is known."""
        return ClassPrior(torch.empty(0, dtype=torch.float64))

    def before_round(self, state: ClassPrior, clock: Clock) -> ClientJob[Opened] | None:
        """The count, before the first round."""
        return CountLabels() if clock.round == 0 else None

    def receive(self, state: ClassPrior, reports: Mapping[int, Payload], seed: int) -> ClassPrior:
        """The shares of the classes, once clients have reported; integers, so in any order the same."""
        counts = [counts.values for sent in reports.values() if (counts := sent.get(LabelCounts)) is not None]
        if not counts:
            return state
        total = torch.stack(counts).sum(0)
        return ClassPrior(total.double() / total.sum())

    def broadcast(self, state: ClassPrior, clock: Clock) -> tuple[Any, ...]:
        """The shares."""
        return (state,)


@dataclass(frozen=True)
class LogitAdjustment(LossTerm):
    """Cross-entropy of ``z + τ ln π`` (Menon et al., ICLR 2021), with π the classes' shares in the federation.

    Frequent classes need a larger margin, so rare ones are not forgotten. A class that nobody holds counts as half a
    label of a federation of 10,000.
    """

    reads: ClassVar[tuple[type, ...]] = (ClassPrior,)
    fits_labels: ClassVar[bool] = True
    strength: NonNegative  # τ

    def begin(self, network: Model, task: ClientTask, state: Any) -> Tensor:
        """``τ ln π`` [K], once a visit."""
        prior = task.broadcast.extras.one(ClassPrior).shares.clamp(min=0.5e-4)
        return (self.strength * prior.log()).to(network.device, network.dtype)

    def __call__(self, step: Step, state: Tensor) -> tuple[Tensor, Tensor]:
        """The loss [B]."""
        return cross_entropy(step.logits + state, step.targets), state
