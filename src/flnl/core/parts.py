"""The vocabulary: what travels, what is kept, and the seams that parts fit into.

Everything here is a value or a protocol. Parts are frozen and pure: whatever changes is in ``FederatedState``, which
goes into a round and comes out of it. Types are the names by which parts find each other's messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from flnl.core.findings import Finding
from flnl.core.stored import stored
from flnl.core.streams import stream, torch_seed
from flnl.shelved import Shelved

if TYPE_CHECKING:
    from flnl.core.model import Model
    from flnl.data.dataset import Images

T = TypeVar("T")
V = TypeVar("V")

Params = dict[str, Tensor]
"""A state_dict: parameters and buffers by name."""


def size_in_bytes(value: Any) -> int:
    """What a value takes on the wire: tensors by their elements, numbers 8 bytes, truth values 1.

    >>> size_in_bytes({"w": torch.zeros(3), "n": 5, "ok": True})
    21
    """
    if isinstance(value, Tensor):
        return value.numel() * value.element_size()
    if value is None:
        return 0
    if isinstance(value, bool):
        return 1
    if isinstance(value, int | float):
        return 8
    if isinstance(value, str | bytes):
        return len(value)
    if isinstance(value, Mapping):
        return sum(size_in_bytes(v) for v in value.values())
    if is_dataclass(value):
        return sum(size_in_bytes(getattr(value, f.name)) for f in fields(value))
    if isinstance(value, Iterable):
        return sum(size_in_bytes(v) for v in value)
    raise TypeError(f"{type(value).__name__} is not something that can be sent")


class Payload:
    """Values looked up by their own type, at most one of each."""

    __slots__ = ("_values",)

    def __init__(self, *values: Any) -> None:
        self._values: dict[type, Any] = {}
        for value in values:
            if type(value) in self._values:
                raise ValueError(f"two values of type {type(value).__name__}; a payload holds one of each")
            self._values[type(value)] = value

    def get(self, kind: type[T]) -> T | None:
        """The value of this type, or None."""
        return self._values.get(kind)

    def one(self, kind: type[T]) -> T:
        """The value of this type.

        Raises:
            LookupError: naming what is there instead.
        """
        try:
            value: T = self._values[kind]
        except KeyError:
            held = ", ".join(t.__name__ for t in self._values) or "nothing"
            raise LookupError(f"no {kind.__name__} here; this payload holds {held}") from None
        return value

    def including(self, *values: Any) -> Payload:
        """A payload with these values added, each in the place of one of its type."""
        return Payload(*{**self._values, **{type(v): v for v in values}}.values())

    def __iter__(self) -> Iterator[Any]:
        return iter(self._values.values())

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Payload({', '.join(map(repr, self))})"


# ----------------------------------------------------------------------------------------------- what clients hold


@dataclass(frozen=True)
class Samples:
    """A client's data as a method may see it: no truth. Images are shared, not copied."""

    images: Images
    index: Tensor  # int64 [n], positions in ``images``
    labels: Tensor  # int64 [n], as given or as corrected

    def __len__(self) -> int:
        return len(self.index)

    def read(self, positions: Tensor | None = None, *, augmented: bool = False) -> Tensor:
        """Stored images at ``positions`` of this client (all by default), [b, C, H, W]."""
        return self.images.read(self.index if positions is None else self.index[positions], augmented=augmented)

    def read_each(self, parts: Sequence[Tensor], *, augmented: bool = False) -> Iterator[Tensor]:
        """As ``read``, of each of ``parts``; the next may be read while one is used."""
        return self.images.read_each([self.index[positions] for positions in parts], augmented=augmented)


@stored("ClientState")
@dataclass(frozen=True)
class ClientState:
    """What a client keeps from one visit to the next. A client that keeps nothing has no state at all."""

    labels: Tensor | None = None  # int64 [n], corrected labels; None while they are as given
    weight: Tensor | None = None  # float [n], weight of each sample in the loss; None for all ones
    terms: Mapping[str, Any] = field(default_factory=dict)  # state of each loss term, by its name
    extras: Payload = field(default_factory=Payload)

    @property
    def empty(self) -> bool:
        """Whether nothing is kept."""
        return self.labels is None and self.weight is None and not self.terms and not len(self.extras)


# ---------------------------------------------------------------------------------------------------- what travels


@dataclass(frozen=True)
class Broadcast:
    """What one client is sent."""

    round: int  # aggregations before this one, over all stages
    stage: int  # number of the stage, from 1
    params: Params
    extras: Payload = field(default_factory=Payload)
    lengths: tuple[int, ...] = ()  # of all stages, in rounds

    def since(self, stage: int) -> int:
        """Rounds before this one, from the first of stage ``stage`` (from 1) on."""
        return self.round - sum(self.lengths[: stage - 1])

    @property
    def last_of_stage(self) -> bool:
        """Whether this is the last round of its stage."""
        return self.round + 1 == sum(self.lengths[: self.stage])


@dataclass(frozen=True)
class ClientTask:
    """One client's work: its data, what it was sent and what it kept."""

    client: int
    samples: Samples
    broadcast: Broadcast
    state: ClientState
    seed: int  # the run's seed

    def stream(self, purpose: str, *indices: int) -> np.random.Generator:
        """Randomness of this client in this round."""
        return stream(self.seed, purpose, self.broadcast.round, self.client, *indices)

    def torch_seed(self, purpose: str) -> int:
        """A seed for torch's generators, of this client in this round."""
        return torch_seed(self.seed, purpose, self.broadcast.round, self.client)


@dataclass(frozen=True)
class Observation:
    """What is noted of a client's model just after its training, for the record alone: no part of a method sees it."""

    moved: float  # ‖θ_k - θ‖² over what is trained
    predicted: Tensor  # int64 [n], the class that it predicts of each of the client's samples


@dataclass(frozen=True)
class ClientResult:
    """What comes back from local training. ``params`` and ``reports`` travel; ``state`` stays with the client."""

    client: int
    num_samples: int
    params: Params | None  # None once they have been summed where the client ran
    state: ClientState
    reports: Payload
    loss: float  # mean over the steps, for the progress line
    steps: int
    finite: bool  # False where a parameter came out as NaN or infinite: such a client is left out
    observation: Observation | None = None  # where it was asked for


@dataclass(frozen=True)
class Benchmark:
    """Aid: clean samples that the server holds. ``score`` gives a model's accuracy and mean cross-entropy on them."""

    score: Callable[[Params], tuple[float, float]]


@dataclass(frozen=True)
class Oracle:
    """Aid that nobody has: the truth. What is given it is an upper bound and no method, and its run says so."""

    quality: Mapping[int, float]  # the share of right labels that each client was given


@dataclass(frozen=True)
class Gathered:
    """A round as the server has it before it lets go of the clients' models."""

    broadcast: Broadcast  # what went down, without what single clients were sent
    results: Sequence[ClientResult]  # finite, with their models, in order of client
    combined: Params
    aid: Payload  # what exchanges ask for in ``Exchange.asks``
    seed: int  # the run's


@dataclass(frozen=True)
class Correction:
    """What a corrector found on one client. ``reports`` travel; the rest stays with the client."""

    client: int
    labels: Tensor  # int64 [n]
    weight: Tensor | None  # float [n]
    keeps: Payload
    reports: Payload


@dataclass(frozen=True)
class Opened:
    """A client's answer to what an exchange asks before a stage."""

    client: int
    reports: Payload  # travel
    keeps: Payload = field(default_factory=Payload)  # stays with the client


# --------------------------------------------------------------------------------------------------- what is state


@stored("ServerState")
@dataclass(frozen=True)
class ServerState:
    """The global model and one slot of state for each server-side part that has any."""

    params: Params
    parts: Mapping[str, Any] = field(default_factory=dict)


@stored("Counters")
@dataclass(frozen=True)
class Counters:
    """Cost so far. A participation is one local training (FedCorr, App. B); bytes are everything that travelled."""

    participations: int = 0
    bytes_down: int = 0
    bytes_up: int = 0
    left_out: int = 0  # trainings that came back non-finite


@stored("FederatedState")
@dataclass(frozen=True)
class FederatedState:
    """Everything that a run is at the end of a round. A checkpoint is this value."""

    round: int
    server: ServerState
    clients: Shelved[ClientState] = field(default_factory=Shelved)
    counters: Counters = field(default_factory=Counters)

    def client(self, client: int) -> ClientState:
        """What this client keeps."""
        return self.clients[client] if client in self.clients else ClientState()

    def keeping(self, states: Mapping[int, ClientState]) -> FederatedState:
        """The state with these clients keeping what is given here."""
        kept = {client: state for client, state in states.items() if not state.empty}
        return replace(self, clients=self.clients.updated(kept, states.keys() - kept.keys()))

    def counted(self, **more: int) -> FederatedState:
        """The state with the named counters increased."""
        now = {name: getattr(self.counters, name) + by for name, by in more.items()}
        return replace(self, counters=replace(self.counters, **now))


@dataclass(frozen=True)
class RoundResult:
    """The state after a round and what happened in it."""

    state: FederatedState
    stage: str
    cohort: tuple[int, ...]
    metrics: Mapping[str, float]  # mean training loss, clients left out, clients without a step; what was observed
    evaluation: Mapping[str, float] | None = None  # where one fell due
    correction: Mapping[str, Any] | None = None  # against the truth where there is one, where labels were corrected


# -------------------------------------------------------------------------------------------------- parts: clients


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


# --------------------------------------------------------------------------------------------------- parts: server


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


# ------------------------------------------------------------------------------------------------------- execution

R_co = TypeVar("R_co", covariant=True)


class ClientJob(Protocol[R_co]):
    """Anything that a client can be asked to do; picklable."""

    def __call__(self, network: Model, task: ClientTask) -> R_co:
        """The job's result for one client."""
        ...


@dataclass(frozen=True)
class Block(Generic[V, R_co]):
    """The outcome of a few tasks: what their results were reduced to, and each of them without it."""

    value: V
    results: list[R_co]


class Executor(Protocol):
    """Runs a job on many clients; nothing else knows how."""

    def map(
        self, job: ClientJob[T], tasks: Sequence[ClientTask], reduce: Callable[[list[T]], Block[V, T]]
    ) -> Iterator[Block[V, T]]:
        """Blocks of ``BLOCK`` tasks, in the order of ``tasks``, each reduced where it ran.

        The cuts are fixed, so that sums have the same bits for any number of workers.
        """
        ...

    def groups(self, job: ClientJob[Any], tasks: Sequence[ClientTask]) -> list[list[int]]:
        """Positions of the tasks that run together, each once: one by one, unless the executor stacks clients.

        The groups of some whole groups' tasks, in order, are those groups, so that they may run in different places.
        """
        return [[position] for position in range(len(tasks))]

    def settings(self) -> dict[str, Any]:
        """What a record should say of it besides its name."""
        return {}

    def close(self) -> None:
        """Let go of whatever outlives a call. The next one may take it up again."""
        return


def described(executor: Executor) -> dict[str, Any]:
    """An executor as a record has it: its name and settings."""
    return {"name": type(executor).__name__.lower(), **executor.settings()}


BLOCK = 5
"""Clients to a block."""

When = Literal["pass", "end"]
"""When labels are corrected: after every pass over the clients, or at the end of the stage."""


def as_list(results: list[T]) -> Block[None, T]:
    """The reduction that keeps every result."""
    return Block(None, results)


def all_finite(params: Params) -> bool:
    """Whether no floating-point entry is NaN or infinite."""
    return all(bool(torch.isfinite(p).all()) for p in params.values() if p.is_floating_point())
