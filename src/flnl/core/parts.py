"""The protocols of parts: one for each slot of a method.

Parts are frozen and pure: whatever changes is in the state that they are given and give back. Types are the names by
which parts find each other's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import numpy as np
from torch import Tensor

from flnl.core.execution import ClientJob
from flnl.core.findings import Finding
from flnl.core.messages import (
    Broadcast,
    ClientResult,
    ClientState,
    ClientTask,
    Combined,
    Correction,
    Fit,
    Gathered,
    Opened,
)
from flnl.core.payload import Params, Payload, V
from flnl.core.step import Mixing, Step
from flnl.core.streams import stream

if TYPE_CHECKING:
    from flnl.core.model import Model


class Part(Protocol):
    """What every part declares, so that a method is checked before it runs."""

    reads: ClassVar[tuple[type, ...]] = ()
    """Types of message without which this part cannot work."""
    networks: ClassVar[int | None] = None
    """Networks a client must train for this part to work; None where any number will do."""

    def lacks(self, stage: Sequence[Part]) -> Sequence[str]:
        """Overrides that would add the parts which this one is meant to act with and ``stage`` does not have."""
        return ()

    def caution(self, sizes: Mapping[int, int]) -> str | None:
        """Why this part will mean little with clients of these ``sizes`` (samples, by client); None where it will."""
        return None


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

    def begin(self, network: Model, task: ClientTask, state: Any) -> Any:
        """The client's state as a visit begins.

        ``state`` is what ``finish`` left at the last visit, None before the first. ``network.received(task)`` gives the
        received network's outputs. This takes place before the first step, one client after another.
        """
        return state

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        """What is random in one batch of ``size``, drawn before it."""
        return None

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """The loss of one batch, [B] or scalar, and the next state."""
        ...

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Any) -> Any:
        """The client's state after the last batch, to be kept; None keeps what was kept before.

        The network holds ``fit.params``.
        """
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
    """What travels besides the model: up after local training, down with the next broadcast.

    A round calls, in this order: ``before_stage`` (in a stage's first round), ``send``, ``report`` on clients,
    ``judge``, ``receive``, ``after_round``. The state lies on the server and in checkpoints.
    """

    sends: ClassVar[tuple[type, ...]] = ()
    """Types that go down to clients."""
    keeps: ClassVar[tuple[type, ...]] = ()
    """Types left on a client after local training."""
    knows: ClassVar[tuple[type, ...]] = ()
    """Types that it gives to the server's parts."""

    @property
    def aid(self) -> tuple[type, ...]:
        """Types of aid, ``Benchmark`` or ``Oracle``, that it is given beyond what clients send."""
        return ()

    @property
    def available_from(self) -> int:
        """The number, from 1, of the first stage in which clients can have what it sends or leaves with them."""
        return 1

    def init(self, clients: int) -> Any:
        """State on the server before the first round, for ``clients`` clients."""
        return None

    def before_stage(self, stage: int) -> ClientJob[Opened] | None:
        """What every client is asked before the first round of ``stage`` (from 1); the answers are received."""
        return None

    def send(self, state: Any, client: int) -> tuple[Any, ...]:
        """What goes down to this client."""
        return ()

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """(What is sent up, what the client keeps) after local training; the network holds ``fit.params``."""
        return Payload(), Payload()

    def wants_models(self, broadcast: Broadcast) -> bool:
        """Whether ``after_round`` is to see every client's model of this round; ``judge`` always does."""
        return False

    def judge(self, state: Any, gathered: Gathered) -> Any:
        """The state after a look at the clients' results, before they are combined.

        Only for an exchange that has this method of its own do all models of a round travel to the server, where they
        are combined with what ``known`` then gives.
        """
        return state

    def receive(self, state: Any, reports: Mapping[int, Payload], seed: int) -> Any:
        """The state with the reports of some clients taken in: after training, a correction or ``before_stage``."""
        return state

    def after_round(self, state: Any, gathered: Gathered) -> Any:
        """The state after a round, once its reports were received."""
        return state

    def known(self, state: Any) -> tuple[Any, ...]:
        """What samplers, aggregators and correctors may know on the server."""
        return ()

    def findings(self, state: Any, clients: Mapping[int, ClientState]) -> tuple[Finding, ...]:
        """Its findings about clients and their samples, for the record alone: measures, figures and ``labels.csv``.

        ``clients`` are those that keep something, by number. Only those exchanges should look at them that have left
        their findings there: what clients keep may lie on disk.
        """
        return ()


class Aggregator(Part, Protocol[V]):
    """Combines the clients' models. ``block`` runs where a few clients ran, ``combine`` on the server."""

    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> V:
        """What is sent on for these clients; ``params`` is the model they received, ``known`` what the server knows."""
        ...

    def combine(self, params: Params, values: Iterable[V], known: Payload) -> Combined:
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
