"""FedReDA's exchange: the mean of the others' last models down as a teacher; the share of trusted samples up."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol, runtime_checkable

from flnl.core.messages import ClientResult, ClientState, ClientTask, Clock, Fit, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import Exchange
from flnl.core.payload import Params, Payload
from flnl.core.ranges import Count, Share, StageNumber
from flnl.core.stored import stored
from flnl.numerics.averaging import divided, weighted_sum
from flnl.parts.messages import LastModel


@stored("OthersMeanModel")
class Teacher:
    """Sent to a client: the mean of the last models of all others."""

    params: Params


@stored("TrustedShare")
class TrustedShare:
    """Sent to the server: the share of the client's rows that were trusted in its visit."""

    value: Share


@runtime_checkable
class Shares(Protocol):
    """A loss term's state that knows this share."""

    @property
    def share(self) -> float:
        """The share."""


@dataclass(frozen=True)
class LeaveOneOut(Exchange):
    """From stage ``stage`` on, a client's teacher is the mean of the models that the others have sent last.

    In the first ``plain_rounds`` of the stage all shares are 1, so that all models count alike.
    """

    sends: ClassVar[tuple[type, ...]] = (Teacher,)
    reports: ClassVar[tuple[type, ...]] = (TrustedShare,)
    keeps: ClassVar[tuple[type, ...]] = (LastModel,)
    plain_rounds: Count
    stage: StageNumber

    def relay(self, state: Any, client: int, clock: Clock, clients: Mapping[int, ClientState]) -> tuple[Any, ...]:
        if clock.stage < self.stage:
            return ()
        models = [kept.params for other, kept in kept_by_client(clients, LastModel).items() if other != client]
        if not models:
            return ()
        return (Teacher(divided(models[0], [weighted_sum(models[0], models, [1.0] * len(models))])),)

    def mirrors(self, result: ClientResult) -> Payload:
        """The client's last model, which it has sent."""
        return Payload() if result.params is None else Payload(LastModel(result.params))

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """The share; the model stays, as the server has it."""
        kept, clock = Payload(LastModel(fit.params)), task.broadcast.clock
        visit = next((state for state in fit.states.values() if isinstance(state, Shares)), None)
        if clock.stage < self.stage or visit is None:
            return Payload(), kept
        share = 1.0 if clock.since(self.stage) < self.plain_rounds else visit.share
        return Payload(TrustedShare(share)), kept
