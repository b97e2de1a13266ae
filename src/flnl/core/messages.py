"""What a client holds, what it keeps, and the messages between server and clients in a round."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from flnl.core.payload import Params, Payload
from flnl.core.stored import stored
from flnl.core.streams import stream, torch_seed

if TYPE_CHECKING:
    from flnl.core.images import Images


@dataclass(frozen=True)
class Samples:
    """A client's data as a method may see it: no truth. Images are shared, not copied."""

    images: Images
    index: Tensor  # int64 [n], positions in ``images``
    given: Tensor  # int64 [n], the labels as they were given

    def __len__(self) -> int:
        return len(self.index)

    def at(self, positions: Tensor) -> Samples:
        """The samples at ``positions`` int64 [m] of this client."""
        return Samples(self.images, self.index[positions], self.given[positions])

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

    def keeping(self, *values: Any) -> ClientState:
        """The state with these ``extras`` added, each in the place of one of its type."""
        return replace(self, extras=self.extras.including(*values))

    @property
    def empty(self) -> bool:
        """Whether nothing is kept."""
        return self.labels is None and self.weight is None and not self.terms and not len(self.extras)

    def held(self, given: Tensor) -> Tensor:
        """Labels int64 [n] that the client holds now: the corrected ones, or those that were ``given``."""
        return given if self.labels is None else self.labels


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

    @property
    def labels(self) -> Tensor:
        """Labels int64 [n] that the client holds now, to be trained with."""
        return self.state.held(self.samples.given)

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
class Fit:
    """What one client's training came to, before anything is reported."""

    params: Params  # with buffers
    states: Mapping[str, Any]  # of each loss term, by its name, after the last batch
    loss: float  # mean over the steps
    steps: int
    finite: bool  # False where a parameter came out as NaN or infinite
    lr: float  # learning rate of the steps


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
class Combined:
    """One model made of a cohort's."""

    params: Params
    weights: Mapping[int, float] = field(default_factory=dict)  # of clients in it, by client; empty where it has none
    facts: Mapping[str, float] = field(default_factory=dict)  # for the record, by name


@dataclass(frozen=True)
class Gathered:
    """A round as the server has it before it lets go of the clients' results."""

    broadcast: Broadcast  # what went down, without what single clients were sent
    results: Sequence[ClientResult]  # finite, in order of client; with their models where an exchange wants them
    combined: Combined | None  # None before the results are combined, or where there were none
    aid: Payload  # what exchanges ask for in ``Exchange.aid``
    seed: int  # the run's
    corrects: bool = False  # whether clients correct labels next, at the end of a pass or stage


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
