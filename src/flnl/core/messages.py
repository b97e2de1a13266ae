"""A client's data and state, and the messages between server and clients in a round."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.payload import Params, Payload
from flnl.core.stored import stored
from flnl.core.streams import Draws, OfEngine, of_part, secret_seed, secret_stream, stream, torch_seed

if TYPE_CHECKING:
    from flnl.core.images import Images

T = TypeVar("T")


@dataclass(frozen=True)
class Samples:
    """A client's data as a method sees it, without true labels. Images are shared, not copied."""

    images: Images
    index: Tensor  # int64 [n], positions in ``images``
    given: Tensor  # int64 [n], the given labels
    people: Tensor | None = (
        None  # int64 [A, n], the labels by each of A people, -1 where one gave none; None: one person
    )

    def __len__(self) -> int:
        return self.index.shape[0]  # a tensor's len takes ten times as long

    def at(self, positions: Tensor) -> Samples:
        """The samples at ``positions`` int64 [m] of this client."""
        people = None if self.people is None else self.people[:, positions]
        return Samples(self.images, self.index[positions], self.given[positions], people)

    def read(self, positions: Tensor | None = None, *, augmented: bool = False) -> Tensor:
        """Stored images at ``positions`` of this client (all by default), [b, C, H, W]."""
        return self.images.read(self.index if positions is None else self.index[positions], augmented=augmented)

    def read_each(self, parts: Sequence[Tensor], *, augmented: bool = False) -> Iterator[Tensor]:
        """``read`` each of ``parts``; may read ahead while the caller uses a part."""
        return self.images.read_each([self.index[positions] for positions in parts], augmented=augmented)


@stored("ClientState")
class ClientState:
    """What a client keeps from one visit to the next. An empty state is not stored."""

    labels: Tensor | None = None  # int64 [n], corrected labels; None for the given labels
    weight: Tensor | None = None  # float [n], weight of each sample in the loss; None for all ones
    terms: Mapping[str, Any] = field(default_factory=dict)  # state of each loss term, by its name
    extras: Payload = field(default_factory=Payload)  # kept values of exchanges
    momentum: Params | None = None  # the optimiser's buffers, if it has any; None if all optimisers start from zero

    def keeping(self, *values: Any) -> ClientState:
        """The state with ``values`` added to ``extras``; each replaces an earlier one of its type."""
        return replace(self, extras=self.extras.including(*values))

    def without_terms(self, names: Collection[str]) -> ClientState:
        """The state without those of the loss terms ``names``."""
        terms = {name: state for name, state in self.terms.items() if name not in names}
        return self if len(terms) == len(self.terms) else replace(self, terms=terms)

    @property
    def empty(self) -> bool:
        """Whether the client keeps nothing."""
        nothing = self.labels is None and self.weight is None and not self.momentum
        return nothing and not self.terms and not len(self.extras)

    def held(self, given: Tensor) -> Tensor:
        """The client's current labels, int64 [n]: the corrected ones, or else the ``given`` ones."""
        return given if self.labels is None else self.labels


@stored("Kept")
class Kept:
    """What the server holds of a real client's state; a number of labels is None if the client keeps it to itself."""

    handle: str  # the name by which the client finds it again; empty if it keeps nothing
    relabelled: int | None = 0  # by the last correction
    changed: int | None = 0  # labels that were not the given ones after it


def kept_by_client(clients: Mapping[int, ClientState], kind: type[T]) -> dict[int, T]:
    """What each client has kept of the type ``kind``; clients that have kept none are left out."""
    kept = ((client, state.extras.get(kind)) for client, state in clients.items())
    return {client: value for client, value in kept if value is not None}


@dataclass(frozen=True)
class Clock:
    """The time in a run, counted in rounds."""

    round: int  # from 0, over all stages
    stage: int  # number of the stage, from 1
    lengths: tuple[int, ...] = ()  # number of rounds of each stage

    def since(self, stage: int) -> int:
        """Number of rounds between the start of stage ``stage`` (from 1) and this round."""
        return self.round - sum(self.lengths[: stage - 1])

    @property
    def stage_round(self) -> int:
        """Number of the round within its stage, from 0."""
        return self.since(self.stage)

    @property
    def last_of_stage(self) -> bool:
        """Whether this is the last round of its stage."""
        return self.round + 1 == sum(self.lengths[: self.stage])


@dataclass(frozen=True)
class Broadcast:
    """The message from the server to one client."""

    round: int  # number of the round, from 0, over all stages
    stage: int  # number of the stage, from 1
    params: Params
    extras: Payload = field(default_factory=Payload)
    lengths: tuple[int, ...] = ()  # number of rounds of each stage

    @property
    def clock(self) -> Clock:
        """The time of the message."""
        return Clock(self.round, self.stage, self.lengths)


@dataclass(frozen=True)
class ClientTask:
    """One client's task: its data, the server's message and the client's state."""

    client: int
    samples: Samples
    broadcast: Broadcast
    state: ClientState
    seed: int  # the run's seed
    secret: bytes | None = field(default=None, repr=False)  # a real client's own; None in a simulation
    own_streams: bool = False  # whether the draws of this visit come from the secret, too, as well as from the seed
    visit: Payload = field(default_factory=Payload)  # what exchanges have begun this visit with; not stored

    @property
    def labels(self) -> Tensor:
        """The client's current labels, int64 [n], for training."""
        return self.state.held(self.samples.given)

    @property
    def _drawn_from(self) -> int:
        """The seed of this client's draws; those that all clients share come from ``seed``."""
        return secret_seed(self.secret, self.seed) if self.own_streams and self.secret is not None else self.seed

    def stream(self, purpose: str, *indices: int) -> np.random.Generator:
        """Random stream of a part on this client in this round; none of the engine's, whatever the purpose is."""
        return stream(self._drawn_from, of_part(purpose), self.broadcast.round, self.client, *indices)

    def secret_stream(self, purpose: str, labels: NDArray[np.int64], *parameters: float) -> Draws:
        """Random numbers on which this client's privacy rests: who could draw them again could undo it.

        A simulation must repeat, so its draws are this round's from the seed, and its privacy is simulated. A real
        client has a ``secret``, and the draws are a function of it, the ``labels`` [n] to hide and the ``parameters``
        of the mechanism (``flnl.core.streams.secret_stream``).
        """
        return self.stream(purpose) if self.secret is None else secret_stream(self.secret, purpose, labels, *parameters)

    def engine_stream(self, purpose: OfEngine, *indices: int, of: str = "") -> np.random.Generator:
        """Random stream of the engine on this client in this round; ``of`` is the name of the part that it is for."""
        named = f"{purpose} {of}" if of else str(purpose)
        return stream(self._drawn_from, named, self.broadcast.round, self.client, *indices)

    def engine_seed(self, purpose: OfEngine) -> int:
        """Seed for torch's generators, of this client in this round, while the engine trains."""
        return torch_seed(self._drawn_from, purpose, self.broadcast.round, self.client)


@dataclass(frozen=True)
class Observation:
    """Measurements of a client's model after its training, only for the record: no part of a method sees them."""

    moved: float  # ‖θ_k - θ‖² over the trainable parameters
    predicted: Tensor  # int64 [n], the predicted class of each of the client's samples


@dataclass(frozen=True)
class Fit:
    """The outcome of one client's training, before the client reports."""

    params: Params  # with buffers
    states: Mapping[str, Any]  # state of each loss term after the last batch, by its name
    loss: float  # mean over the steps, 0 without steps
    steps: int
    finite: bool  # False if any parameter is NaN or infinite
    lr: float  # learning rate of the steps
    momentum: Params | None = None  # the optimiser's buffers, if it has any; None unless optimisers go on

    def state_of(self, kind: type[T]) -> T | None:
        """The loss terms' state of the type ``kind``; None if no term has one."""
        return next((state for state in self.states.values() if isinstance(state, kind)), None)


@dataclass(frozen=True)
class ClientResult:
    """The result of local training. ``params`` and ``reports`` go to the server; ``state`` stays on the client."""

    client: int
    num_samples: int
    params: Params | None  # None if the worker has aggregated them already
    state: ClientState
    reports: Payload
    loss: float  # mean over the steps, 0 without steps; for the record
    steps: int
    finite: bool  # False if any parameter is NaN or infinite; such clients are left out
    observation: Observation | None = None  # None unless the run observes clients' models
    missing: str = ""  # why no model has come, as in "did not answer"; then ``finite`` is False


@dataclass(frozen=True)
class ServerSamples:
    """Aid: clean samples on the server. ``score`` returns a model's accuracy and mean cross-entropy on them.

    ``confusion`` counts them by class and predicted class, int64 [K, K].
    """

    score: Callable[[Params], tuple[float, float]]
    confusion: Callable[[Params], Tensor] | None = None


@dataclass(frozen=True)
class Oracle:
    """Aid: ground truth. A method that uses it is an upper bound, and its runs are marked so."""

    quality: Mapping[int, float]  # each client's share of right labels


@dataclass(frozen=True)
class Combined:
    """A cohort's combined model."""

    params: Params
    weights: Mapping[int, float] = field(default_factory=dict)  # weight of each client; empty if there are no weights
    facts: Mapping[str, float] = field(default_factory=dict)  # values for the record, by name


@dataclass(frozen=True)
class Gathered:
    """A round's results on the server, for the exchanges."""

    broadcast: Broadcast  # without the messages of exchanges to single clients
    results: Sequence[ClientResult]  # finite ones, in order of client; with models if an exchange wants them
    combined: Combined | None  # None before the results are combined, or if there are none
    aid: Payload  # the aid that exchanges request in ``Exchange.aid``
    seed: int  # the run's seed
    corrects: bool = False  # clients correct labels next, at the end of a pass or stage
    num_samples: Mapping[int, int] = field(default_factory=dict)  # of each client that holds any, of the cohort or not


@dataclass(frozen=True)
class Correction:
    """The outcome of label correction on one client. Only ``reports`` are sent; the rest stays on the client."""

    client: int
    labels: Tensor  # int64 [n]
    weight: Tensor | None  # float [n]
    keeps: Payload
    reports: Payload


@dataclass(frozen=True)
class Opened:
    """A client's answer to an exchange's ``before_round`` job."""

    client: int
    reports: Payload  # sent to the server
    keeps: Payload = field(default_factory=Payload)  # stays on the client


@dataclass(frozen=True)
class Answered:
    """The outcome of a correction or a ``before_round`` job. ``reports`` go to the server; ``state`` stays there."""

    client: int
    state: ClientState
    reports: Payload
