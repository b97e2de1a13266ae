"""The base classes of parts: one for each slot of a method.

Parts are immutable and their methods pure: everything that changes is in the state that they receive and return. Parts
look up each other's messages by type.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal

import numpy as np
from torch import Tensor, nn

from flnl.core.execution import ClientJob
from flnl.core.findings import Finding
from flnl.core.inputs import Kind
from flnl.core.messages import ClientResult, ClientState, ClientTask, Clock, Combined, Correction, Fit, Gathered, Opened
from flnl.core.payload import Params, Payload, V
from flnl.core.step import WHOLE, Mixing, Phase, Step
from flnl.core.streams import of_part, stream
from flnl.core.training import Training

if TYPE_CHECKING:
    from flnl.core.model import Model


@dataclass(frozen=True)
class Setting:
    """What the work of a part may depend on, known before a run starts."""

    sizes: Mapping[int, int]  # samples of each client that holds any
    lengths: tuple[int, ...]  # rounds of each stage
    training: Training  # how clients train in the part's stage
    key: str = "method"  # configuration key of the part, such as method.exchange.lid; for messages
    kind: Kind = "image"  # what the data set's samples are
    classes: int | None = None  # None: not told


class Part:
    """What every part declares: its requirements, checked before a method runs, and what it overrides."""

    reads: ClassVar[tuple[type, ...]] = ()
    """Types of message that this part needs."""
    networks: ClassVar[int | None] = None
    """Number of networks a client must train for this part to work; None for any number."""
    alone: ClassVar[str | None] = None
    """Why clients that train with this part, a batch rule or a loss term, cannot be stacked, after its name, as in
    ``has several phases in an epoch``; None if they can. Of a part that does not say so, ``executor=auto`` may choose
    stacks, whose clients then run one by one."""
    restarts: ClassVar[bool] = False
    """Whether what is kept of this part, a loss term or a server update, describes the path of the global model; it is
    dropped where a stage restarts from the initial model."""

    def lacks(self, stage: Sequence[Part]) -> Sequence[str]:
        """Overrides that add the parts this one is designed to work with, as far as ``stage`` does not have them."""
        return ()

    def caution(self, setting: Setting) -> str | None:
        """Why this part does little or nothing in a run of this ``setting``, in one line; None if it does its work.

        The line names values by the part's own keys, as in ``method.exchange.lid.k``; a short key of the method in use
        is put in their place.
        """
        return None

    def begins(self, lengths: Sequence[int]) -> int:
        """The round of a run (from 0) from which this part does all that it does, after any warm-up of its own.

        Args:
            lengths: the numbers of rounds of the method's stages.
        """
        return 0

    def refuses(self, network: nn.Module, stage: Sequence[Part], setting: Setting) -> str | None:
        """Why this part cannot work with this ``network`` among the parts of ``stage``, in one line; None if it can."""
        return None

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """Findings about clients and their samples, only for the record: metrics, figures and ``labels.csv``.

        Args:
            state: that of an exchange or of a server update; of a loss term what clients keep of it, by client; of
                other parts None.
            clients: states of the clients that have one, by number. Read them only if the findings are kept there:
                reading one may load it from disk.
            known: what exchanges know on the server.
        """
        return ()

    def overrides(self, method: str) -> bool:
        """Whether the part has a ``method`` of its own instead of its base class's, which does nothing."""
        own: str = getattr(type(self), method).__module__
        return own != __name__


class LossTerm(Part, ABC):
    """One named summand of the local objective.

    Rules that let a term run for stacked clients as well as for one: it returns per-sample losses [B], which the
    trainer averages, or a scalar; it does not branch on a tensor's value, nor on a number or flag of a message or a
    state, which is a tensor where stacked clients differ in it; per-sample state is indexed by ``step.positions``;
    random numbers come from ``draw`` only. A state is made of tensors and numbers in dataclasses,
    mappings, lists and tuples (not named tuples); if it is kept between visits, its dataclasses are ``stored``.
    """

    fits_labels: ClassVar[bool] = False
    """Whether the term learns from labels; each stage needs at least one such term, or one that needs none."""
    without_labels: ClassVar[bool] = False
    """Whether the term learns from the samples alone, so that a stage may have no other; one stage fits labels."""
    rowwise: ClassVar[bool] = False
    """Whether the term returns per-sample losses, each of which depends only on its row's outputs, targets and labels;
    then one call can handle the rows of many clients."""
    copies: ClassVar[float] = 0
    """How many copies of the model a client's state holds, such as 1 for an average of its models: a stack is as large
    as its memory allows."""

    def begin(self, network: Model, task: ClientTask, state: Any) -> Any:
        """The client's state at the start of a visit, before the first step; called for one client after another.

        ``state`` is what ``finish`` kept last, None if it has kept nothing. The network holds the
        received model; ``network.received(task)`` gives its outputs, and again in ``finish`` without another pass.
        A term's own optimiser goes on from the last visit where ``task.state.momentum`` is not None, as the network's.
        """
        return state

    def draw(self, rng: np.random.Generator, size: int) -> Any:
        """The random draw for one batch of ``size``, made before the step.

        Samples of the phase's second pool count: ``size`` is B + B'.
        """
        return None

    @abstractmethod
    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """The loss of one batch, [B] or scalar, and the next state."""

    def stepped(self, params: Params, state: Any) -> Any:
        """The state after the optimiser's step, such as an average of the client's models.

        ``params`` are one client's parameters and buffers after the step, without gradients. They are not copies, and
        the next step changes them: return new tensors.
        """
        return state

    def finish(self, network: Model, task: ClientTask, fit: Fit, state: Any) -> Any:
        """The client's state to keep for its next visit; None, the default, leaves what is stored as it is.

        The network holds ``fit.params``. The buffers of a term's own optimiser are of use to the next visit where
        ``fit.momentum`` is not None.
        """
        return None


class BatchRule(Part):
    """Prepares a client's samples for training: plans each epoch, relabels samples, has batches mixed."""

    views: ClassVar[int] = 1
    """Number of views of each image that a step has, each augmented by random draws of its own."""

    def phases(self, network: Model, task: ClientTask, epoch: int, epochs: int) -> Iterable[Phase]:
        """The phases of this epoch, of ``epochs`` in the visit; by default one, of all samples as they are.

        Each phase is asked for once the one before it is trained. The network holds the current parameters.
        """
        return (WHOLE,)

    def selections(self, network: Model, task: ClientTask) -> Mapping[str, Phase]:
        """The samples and labels after each step of the rule, by the step's name, only for the record."""
        return {}

    def relabels(self, network: Model, task: ClientTask) -> Tensor | None:
        """New labels, int64 [n], for the client to hold from its next visit on; None changes nothing."""
        return None

    def mixing(self, rng: np.random.Generator, size: int, stage: int) -> Mixing | None:
        """How one batch of ``size`` is mixed, its inputs, targets and weights alike; None leaves it as it is."""
        return None


class GradientTransform(Part):
    """Changes gradients before the optimiser's step, or the resulting update."""

    def __call__(self, gradients: Mapping[str, Tensor], step: Step) -> Mapping[str, Tensor]:
        """New gradients by parameter name."""
        return gradients

    def update(
        self, before: Mapping[str, Tensor], after: Mapping[str, Tensor], gradients: Mapping[str, Tensor], step: Step
    ) -> Mapping[str, Tensor]:
        """New parameters by name; parameters that are not returned keep their value of ``after``.

        Overriding this method makes the trainer copy the parameters before each step.

        Args:
            before: the parameters before the optimiser's step.
            after: the parameters after it.
            gradients: those that the optimiser used, of the parameters that have one.
            step: the step; its ``params`` are those of ``after``.
        """
        return after


class LabelCorrector(Part, ABC):
    """Detects and corrects wrong labels on a client."""

    rules: ClassVar[tuple[str, ...]] = ()
    """Names of its rules; a stage chooses one."""
    reports: ClassVar[tuple[type, ...]] = ()
    """Types that clients send to the server after a correction."""

    def chosen(self, rule: str, known: Payload, clients: Sequence[int]) -> list[int]:
        """The clients that correct labels, in order of number; called on the server."""
        return list(clients)

    @abstractmethod
    def correct(self, network: Model, task: ClientTask, rule: str) -> Correction:
        """Correct the client's labels by ``rule``; the network holds the received model."""


@dataclass(frozen=True)
class Sampling:
    """The information that a sampler chooses the cohort from."""

    seed: int
    clock: Clock
    clients: tuple[int, ...]  # the clients with data, in order
    num_samples: Mapping[int, int]
    known: Payload  # what exchanges know on the server
    ask: Callable[[ClientJob[Any], Sequence[int]], list[Any]]  # runs a job on clients; counted as traffic

    def stream(self, purpose: str) -> np.random.Generator:
        """Random stream of the sampler in this round."""
        return stream(self.seed, of_part(purpose), self.clock.round)


class ClientSampler(Part, ABC):
    """Chooses the clients of a round."""

    asks: ClassVar[tuple[type, ...]] = ()
    """Classes of its ``jobs``; dataclasses that are ``stored``, with a number or a payload as their outcome."""

    def jobs(self) -> tuple[ClientJob[Any], ...]:
        """The exact jobs, with their settings, that it may ask of clients; a site refuses any other."""
        return ()

    @property
    def reveals(self) -> Mapping[type, float]:
        """As ``Exchange.reveals``: those of its jobs whose outcome tells of single samples."""
        return {}

    @abstractmethod
    def __call__(self, sampling: Sampling) -> list[int]:
        """The cohort, each client at most once."""

    @abstractmethod
    def size(self, clients: int) -> int:
        """Maximum number of clients in a round, of ``clients`` in total."""


class Exchange(Part):
    """Messages besides the model: clients report after local training, the server sends with the next broadcast.

    A round calls, in this order: ``before_round``, ``broadcast``, ``send``, ``relay``, on clients ``begin`` and
    ``report``, then ``receive`` and ``gathered``, or ``gathered`` first. The state is kept on the server and in
    checkpoints.
    """

    sends: ClassVar[tuple[type, ...]] = ()
    """Types that it sends to clients."""
    reports: ClassVar[tuple[type, ...]] = ()
    """Types that clients send to the server; a real client lets no other type out."""
    keeps: ClassVar[tuple[type, ...]] = ()
    """Types that it leaves on a client after local training."""
    knows: ClassVar[tuple[type, ...]] = ()
    """Types that it makes available to the server's parts."""

    @property
    def aid(self) -> tuple[type, ...]:
        """Types of aid that it needs besides the clients' reports: ``ServerSamples``, ``Oracle``."""
        return ()

    @property
    def available_from(self) -> int:
        """Number, from 1, of the first stage in which clients can have what it sends or leaves on them."""
        return 1

    @property
    def reveals(self) -> Mapping[type, float]:
        """Types that tell the server or other clients of single samples, of labels by class, or a client's model.

        Their value is the ε of the label differential privacy that they have, which a real client adds up, and lets out
        up to the limit that it was given; without any it is infinite, and a client must have been told the type's name.
        """
        return {}

    def init(self, clients: int, params: Params) -> Any:
        """The server's state before the first round, for ``clients`` clients; ``params`` is the initial model."""
        return None

    def before_round(self, state: Any, clock: Clock) -> ClientJob[Opened] | None:
        """A job for all clients before a round; ``receive`` gets the reports. None for none.

        A job for once has a round of its own, such as the first of a stage: ``clock.stage_round == 0``. There, clients
        receive the model that the stage before ended with, also if this one restarts from the initial model; and what
        ``broadcast`` and ``send`` have for them. Whether there is a job follows from the clock alone, by which a real
        client checks that it is asked.
        """
        return None

    def broadcast(self, state: Any, clock: Clock) -> tuple[Any, ...]:
        """Messages for every client, which are the same for all; made once a round, and sent to each worker once."""
        return ()

    def send(self, state: Any, client: int, clock: Clock) -> tuple[Any, ...]:
        """Messages for this client alone."""
        return ()

    def relay(self, state: Any, client: int, clock: Clock, clients: Mapping[int, ClientState]) -> tuple[Any, ...]:
        """Messages for this client about what other clients have sent, such as their models; with training tasks only.

        A value that clients have sent and that they keep is stored once: in ``clients``, the states of the clients that
        have one, by number. Reading one may load it from disk.
        """
        return ()

    def mirrors(self, result: ClientResult) -> Payload:
        """What the server keeps of a real client's result for ``relay``, since it does not have the client's state.

        A real client's ``state`` is not in ``result``; the values are types of ``keeps``.
        """
        return Payload()

    def own(self, state: Any, client: int) -> Any:
        """What of the state one client may know at the end, so that ``findings`` tells of its samples; None: nothing.

        It has the type of the state.
        """
        return None

    def begin(self, network: Model, task: ClientTask) -> tuple[Payload, Payload]:
        """What parts read during this visit, as ``task.visit`` and ``step.visit``, and what the client keeps after it.

        Nothing of the first is stored or sent; its types are declared in ``sends``, those of the second in ``keeps``.
        The network holds the received model; ``network.received(task)`` gives its outputs, and again to other parts
        without another pass.
        """
        return Payload(), Payload()

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """The payload to send to the server after local training, and the payload that the client keeps.

        The network holds ``fit.params``.
        """
        return Payload(), Payload()

    def wants_models(self, clock: Clock) -> Wants:
        """Whether ``gathered`` needs the clients' models of this round: no, or before or after they are combined.

        Models that an exchange wants are all sent to the server, which otherwise gets their combinations. What
        ``gathered`` makes known before they are combined, the aggregator can use.
        """
        return "no"

    def receive(self, state: Any, reports: Mapping[int, Payload], seed: int) -> Any:
        """The state after receiving some clients' reports: from training, a correction or ``before_round``."""
        return state

    def gathered(self, state: Any, gathered: Gathered) -> Any:
        """The state after a round's results, once its reports were received; or before they are combined, if wanted.

        In the latter case it is called only if there are results.
        """
        return state

    def known(self, state: Any) -> tuple[Any, ...]:
        """Values that samplers, aggregators and correctors may use on the server."""
        return ()


class Aggregator(Part, ABC, Generic[V]):
    """Combines the clients' models. ``block`` runs in the worker of a few clients, ``combine`` on the server."""

    @property
    def by_samples(self) -> bool:
        """Whether clients with more samples count more; by default, if ``weights`` is ``samples``."""
        return getattr(self, "weights", None) == "samples"

    @abstractmethod
    def block(self, params: Params, results: Sequence[ClientResult], known: Payload) -> V:
        """Reduce these clients' results; ``params`` is the model they received, ``known`` what the server knows."""

    @abstractmethod
    def combine(self, params: Params, values: Iterable[V], known: Payload) -> Combined:
        """Combine the values of all blocks, in order of client, into one model."""


class ServerUpdate(Part, ABC):
    """Computes the next global model from the current one and the combined one."""

    def init(self, params: Params) -> Any:
        """State before the first round."""
        return None

    @abstractmethod
    def __call__(
        self, params: Params, combined: Params, cohort: Sequence[int], clients: int, state: Any
    ) -> tuple[Params, Any]:
        """The next model and state. ``cohort`` are the combined clients, of ``clients`` in total."""

    def shown(self, params: Params, state: Any) -> Params:
        """The model to evaluate and save; by default ``params``, the model that is sent next."""
        return params


Wants = Literal["no", "before", "after"]
"""Whether an exchange wants the clients' models of a round, before or after they are combined."""

When = Literal["pass", "end"]
"""When labels are corrected: after every pass over the clients, or at the end of the stage."""
