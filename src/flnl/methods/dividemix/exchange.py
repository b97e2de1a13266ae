"""DivideMix's division of a client's samples at the start of a visit; nothing is sent."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import Exchange
from flnl.core.payload import Payload
from flnl.core.ranges import Share
from flnl.methods.dividemix.division import Fitting, Judgement


@dataclass(frozen=True)
class Division(Exchange):
    """Each client judges its samples by the two received networks, for its batch rule and for the record."""

    networks: ClassVar[int | None] = 2
    keeps: ClassVar[tuple[type, ...]] = (Judgement,)
    fitting: Fitting
    threshold: Share  # probability above which a label counts as right

    def begin(self, network: Model, task: ClientTask) -> tuple[Payload, Payload]:
        """Keep the judgement; the losses of earlier ones enter it if the fitting has a history."""
        if len(task.samples) == 0:
            return Payload(), Payload()
        return Payload(), Payload(self.fitting.by_received(network, task, task.state.extras.get(Judgement)))

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """The samples whose labels count as wrong at each client's last visit, by the mean of both probabilities."""
        return tuple(
            SuspectedSamples(client, right <= self.threshold, 1 - right, judgement.labels)
            for client, judgement in kept_by_client(clients, Judgement).items()
            for right in [judgement.probability.mean(0)]
        )
