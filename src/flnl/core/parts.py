"""The protocols of parts: one for each slot of a method.

Parts are frozen and pure: whatever changes is in the state that they are given and give back. Types are the names by
which parts find each other's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from flnl.core.execution import ClientJob
from flnl.core.findings import Finding
from flnl.core.messages import Broadcast, ClientResult, ClientState, ClientTask, Correction, Gathered, Opened
from flnl.core.payload import Params, Payload, V
from flnl.core.streams import stream

if TYPE_CHECKING:
    from flnl.core.model import Model


@dataclass
class Step:
    """One batch as the loss terms see it. Shared results are computed once, by whoever asks first."""

    module: Callable[[Tensor], Tensor]
    params: Params  # the live parameters being trained (no buffers)
    broadcast: Broadcast
    inputs: Tensor  # [B, C, H, W], after augmentation, normalisation and mixing
    labels: Tensor  # int64 [B], before mixing
    targets: Tensor  # int64 [B], or float [B, K] after mixing
    positions: Tensor  # int64 [B], positions of the samples on the client
    weight: Tensor | None  # [B], of each row in the loss, after mixing; None for all ones
    draws: Mapping[str, Any]  # by the name of the term that declared them
    number: int  # of the batch in its epoch, from 0
    unmixed: Tensor  # [B, C, H, W], the inputs before mixing
    mixing: Mixing | None  # how inputs and targets were mixed; None where they were not
    received: Callable[[Tensor], Tensor]  # the model as it was received, frozen and in eval mode
    scored: Callable[[Tensor], Tensor]  # the model being trained, in eval mode and without gradients
    kept: Payload  # what the client keeps from earlier visits

    @cached_property
    def logits(self) -> Tensor:
        """The network's output [B, K] on ``inputs``."""
        return self.module(self.inputs)

    @cached_property
    def unmixed_logits(self) -> Tensor:
        """The network's output [B, K] on ``unmixed``, without gradients: its own where nothing was mixed."""
        return self.logits.detach() if self.mixing is None else self.scored(self.unmixed)

    @cached_property
    def received_logits(self) -> Tensor:
        """The received model's output [B, K] on ``unmixed``, without gradients."""
        with torch.no_grad():
            return self.received(self.unmixed)


class Part(Protocol):
    """What every part may say of itself, so that a method is checked before it runs."""

    reads: ClassVar[tuple[type, ...]] = ()
    """Types of message without which this part cannot work."""

    def lacks(self, stage: Sequence[Part]) -> Sequence[str]:
        """Words that choose what it is meant to act with and ``stage``, the active parts, do not have."""
        return ()


@dataclass(frozen=True)
class Mixing:
    """How a batch was mixed with itself: ``share · row + (1 - share) · row[partner]``."""

    share: float
    partner: Tensor  # int64 [B]


class LossTerm(Part, Protocol):
    """One named summand of the local objective.

    It returns per-sample losses [B] or a scalar, and the trainer reduces; it branches on no tensor's value; state a
    sample is indexed by ``step.positions``; randomness comes from ``draw``. So a term runs stacked as well as alone.
    """

    fits_labels: ClassVar[bool] = False
    """Whether the term learns from labels; a stage needs one that does."""
    rowwise: ClassVar[bool] = False
    """Whether it gives per-sample losses that each depend on their row's logits, targets, labels alone, so that the
    rows of many clients can be given at once."""

    def init(self, params: Params, count: int, num_classes: int) -> Any:
        """State on a client's first visit, for ``count`` samples."""
        return None

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        """What is random in one batch of ``size``, drawn before it."""
        return None

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """The loss of one batch, [B] or scalar, and the next state."""
        ...

    def finish(self, broadcast: Broadcast, params: Params, state: Any) -> Any:
        """State after the client's last batch, when it holds ``params``."""
        return state


@dataclass(frozen=True)
class Selection:
    """The samples of one epoch and the labels that they are trained with."""

    positions: Tensor  # int64 [m], each at most once
    labels: Tensor | None = None  # int64 [n], of all the client's samples; None for those that it holds


class BatchRule(Part, Protocol):
    """What becomes of a client's samples before the loss: which are used in an epoch, and how a batch is mixed."""

    def limited_to(self) -> Sequence[int]:
        """The numbers, from 1, of the stages that it acts in; none where it acts in all."""
        return ()

    def select(self, network: Model, task: ClientTask, epoch: int) -> Selection | None:
        """What this epoch uses; None for all samples as they are. The network holds the parameters being trained."""
        return None

    def told(self, network: Model, task: ClientTask) -> Mapping[str, Selection | None]:
        """What each of its steps makes of a client's samples, by name, for the record alone; None for all of them."""
        return {}

    def relabels(self, network: Model, task: ClientTask) -> Tensor | None:
        """Labels int64 [n] that the client holds from its next visit on; None leaves those it has."""
        return None

    def draw(self, rng: np.random.Generator, size: int, stage: int) -> Mixing | None:
        """What is random in one batch of ``size``; None leaves the batch as it is."""
        return None

    def mix(self, inputs: Tensor, labels: Tensor, num_classes: int, draw: Mixing | None) -> tuple[Tensor, Tensor]:
        """Mixed inputs and targets: int64 [B] labels, or float [B, K]."""
        return inputs, labels

    def weigh(self, weight: Tensor, draw: Mixing | None) -> Tensor:
        """Weights [B] of the mixed rows, from those of the samples."""
        return weight


class GradientTransform(Part, Protocol):
    """Masks or scales gradients between backward and the optimiser's step, or the step itself."""

    def __call__(self, gradients: Mapping[str, Tensor], step: Step) -> Mapping[str, Tensor]:
        """New gradients by parameter name."""
        return gradients

    def update(self, before: Mapping[str, Tensor], after: Mapping[str, Tensor], step: Step) -> Mapping[str, Tensor]:
        """What the parameters shall be, given what they were before the optimiser's step and are after it.

        The parameters before the step are copied for a transform that has this method of its own.
        """
        return after


class LabelCorrector(Part, Protocol):
    """Finds and mends wrong labels on a client."""

    rules: ClassVar[tuple[str, ...]] = ()
    """Names of its rules; a stage says which one it follows."""

    def chosen(self, rule: str, known: Payload, clients: Sequence[int]) -> list[int]:
        """The clients that are asked to correct, in order of their number; decided on the server."""
        return list(clients)

    def correct(self, network: Model, task: ClientTask, rule: str) -> Correction:
        """Labels [n] after correction by ``rule``, with the model just received."""
        ...

    def findings(self, known: Payload, clients: Mapping[int, ClientState]) -> tuple[Finding, ...]:
        """What it says of clients and their samples, for the record alone: measures, figures and ``labels.csv``.

        ``known`` is what exchanges know on the server. ``clients`` are those that keep something, by number; what they
        keep may lie on disk.
        """
        return ()


@dataclass(frozen=True)
class Sampling:
    """What a sampler may use to choose the cohort."""

    seed: int
    round: int  # over all stages
    stage_round: int  # within the stage, from 0
    clients: tuple[int, ...]  # those that hold data, in order
    num_samples: Mapping[int, int]
    known: Payload  # what exchanges know on the server
    ask: Callable[[ClientJob[Any], Sequence[int]], list[Any]]  # runs a job on clients; counted as traffic

    def stream(self, purpose: str) -> np.random.Generator:
        """Randomness of this round."""
        return stream(self.seed, purpose, self.round)


class ClientSampler(Part, Protocol):
    """Chooses the clients of a round."""

    def __call__(self, sampling: Sampling) -> list[int]:
        """The cohort, each client at most once."""
        ...

    def size(self, clients: int) -> int:
        """How many of ``clients`` a round has at most."""
        ...


class Exchange(Part, Protocol):
    """What travels besides the model: up after local training, down with the next broadcast."""

    sends: ClassVar[tuple[type, ...]] = ()
    """Types that go down to clients."""
    keeps: ClassVar[tuple[type, ...]] = ()
    """Types left on a client after local training."""
    knows: ClassVar[tuple[type, ...]] = ()
    """Types that it tells the server's parts."""

    def first_stage(self) -> int:
        """The number, from 1, of the first stage in which clients can have what it sends or leaves with them."""
        return 1

    def init(self, clients: int) -> Any:
        """State on the server before the first round."""
        return None

    def doubt(self, sizes: Mapping[int, int]) -> str | None:
        """Why its reports will mean little with clients of these ``sizes``; None where they will not."""
        return None

    def opening(self, stage: int) -> ClientJob[Opened] | None:
        """What every client is asked before the first round of ``stage`` (from 1); the answers are folded."""
        return None

    def wants_models(self, broadcast: Broadcast) -> bool:
        """Whether ``fold_models`` is to see every client's model of this round."""
        return False

    def asks(self) -> tuple[type, ...]:
        """Types of aid, ``Benchmark`` or ``Oracle``, that ``fold_models`` takes beyond what clients send."""
        return ()

    def fold_models(self, state: Any, gathered: Gathered) -> Any:
        """The state after a round of which it wanted the clients' models; computed on the server."""
        return state

    def report(self, network: Model, task: ClientTask, params: Params) -> tuple[Payload, Payload]:
        """(What is sent up, what the client keeps) after local training gave ``params``."""
        return Payload(), Payload()

    def fold(self, state: Any, reports: Mapping[int, Payload], seed: int) -> Any:
        """The state with the reports of some clients taken in."""
        return state

    def close(self, state: Any) -> Any:
        """The state at the end of a pass or stage, before labels are corrected."""
        return state

    def send(self, state: Any, client: int) -> tuple[Any, ...]:
        """What goes down to this client."""
        return ()

    def known(self, state: Any) -> tuple[Any, ...]:
        """What samplers and correctors may know on the server."""
        return ()

    def findings(self, state: Any, clients: Mapping[int, ClientState]) -> tuple[Finding, ...]:
        """What it says of clients and their samples, for the record alone: measures, figures and ``labels.csv``.

        ``clients`` are those that keep something, by number. Only those exchanges should look at them that have left
        their findings there: what clients keep may lie on disk.
        """
        return ()


class Aggregator(Part, Protocol[V]):
    """Combines the clients' models. ``block`` runs where a few clients ran, ``combine`` on the server."""

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> V:
        """What is sent on for these clients; ``params`` is the model they received, ``known`` what the server knows."""
        ...

    def combine(self, params: Params, values: Iterable[V]) -> Params:
        """The combined model, from the values of all blocks in order of client."""
        ...


class ServerUpdate(Part, Protocol):
    """From the received model and the combined one to the next global model."""

    def init(self, params: Params) -> Any:
        """State before the first round."""
        return None

    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: Any
    ) -> tuple[Params, Any]:
        """The next model and state. ``cohort`` are the clients that were combined, of ``clients`` in all."""
        ...

    def shown(self, params: Params, state: Any) -> Params:
        """The model to evaluate and to hand out, where that is not ``params``, the one that is sent next."""
        return params


When = Literal["pass", "end"]
"""When labels are corrected: after every pass over the clients, or at the end of the stage."""
