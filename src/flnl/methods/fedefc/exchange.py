"""FedEFC's exchange: accuracies up until they stop to rise, a flag down; then each visit estimates a noise matrix."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch

from flnl.core.findings import EstimatedNoise, Finding, Scalar
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, Gathered, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import Exchange, Part, Setting
from flnl.core.payload import Params, Payload
from flnl.core.ranges import Count, PositiveCount, Share
from flnl.core.stored import stored
from flnl.methods.fedefc.loss import FedEFC, Running
from flnl.methods.fedefc.matrix import NoiseMatrix, confident_joint


@stored("LabelAccuracy")
class LabelAccuracy:
    """Sent to the server: the share of the client's samples that a model predicts as they are labelled."""

    value: Share


@stored("Corrects")
class Corrects:
    """Sent to clients once labels are corrected for."""

    flag: bool = True


@stored("PrestoppingState")
class PrestoppingState:
    """The server's state."""

    clients: int
    best: float = 0.0  # largest mean accuracy of a round that counts
    without: int = 0  # rounds since then
    latest: float = 0.0  # mean accuracy of the last round
    stopped: bool = False  # whether clients correct

    def after(self, accuracy: float, patience: int, *, counts: bool) -> PrestoppingState:
        """The state after a round with this mean accuracy; an equal one is no new best."""
        if not counts:
            return PrestoppingState(self.clients, latest=accuracy)
        if accuracy > self.best:
            return PrestoppingState(self.clients, accuracy, 0, accuracy)
        return PrestoppingState(self.clients, self.best, self.without + 1, accuracy, self.without + 1 >= patience)


@dataclass(frozen=True)
class Prestopping(Exchange):
    """Until ``patience`` rounds in a row bring no new best mean accuracy, clients report how well labels are fitted.

    Rounds up to number ``monitor_after`` (from 0) do not count. From the round after on, every visit begins with an
    estimate of the noise matrix from the received model, in eval mode and without augmentation; training goes on from
    the current model. ``monitor=training`` is the accuracy of the network while it is being trained, over all steps of
    the visit, ``received`` that of the received model.
    """

    sends: ClassVar[tuple[type, ...]] = (Corrects, NoiseMatrix)
    reports: ClassVar[tuple[type, ...]] = (LabelAccuracy,)
    keeps: ClassVar[tuple[type, ...]] = (NoiseMatrix,)
    patience: PositiveCount
    monitor_after: Count
    monitor: Literal["training", "received"]

    def lacks(self, stage: Sequence[Part]) -> Sequence[str]:
        return () if any(isinstance(part, FedEFC) for part in stage) else ("method/local=[fedefc]",)

    def begins(self, lengths: Sequence[int]) -> int:
        """The first round that can correct: a first best, and then ``patience`` rounds without one."""
        return self.monitor_after + self.patience + 2

    def caution(self, setting: Setting) -> str | None:
        rounds, first = sum(setting.lengths), self.begins(setting.lengths)
        if first < rounds:
            return None
        return (
            f"{setting.key}.monitor_after={self.monitor_after} and {setting.key}.patience={self.patience}: correction "
            f"begins with round {first} at the earliest, counted from 0, and the run has {rounds}; lower them"
        )

    def init(self, clients: int, params: Params) -> PrestoppingState:
        return PrestoppingState(clients)

    def broadcast(self, state: PrestoppingState, clock: Clock) -> tuple[Any, ...]:
        return (Corrects(),) if state.stopped else ()

    def begin(self, network: Model, task: ClientTask) -> tuple[Payload, Payload]:
        """The noise matrix for this visit and for the record, once clients correct."""
        if task.broadcast.extras.get(Corrects) is None:
            return Payload(), Payload()
        found = NoiseMatrix.of(confident_joint(network.received(task).double().softmax(1), task.labels))
        return Payload(found), Payload(found)

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        if task.broadcast.extras.get(Corrects) is not None:
            return Payload(), Payload()
        if self.monitor == "received":
            right = network.received(task).argmax(1) == task.labels
            return Payload(LabelAccuracy(float(right.double().mean()))), Payload()
        running = fit.state_of(Running)
        return Payload() if running is None else Payload(LabelAccuracy(running.accuracy)), Payload()

    def gathered(self, state: PrestoppingState, gathered: Gathered) -> PrestoppingState:
        """The state after the round's mean accuracy, if anyone has reported one."""
        sent = [one.value for each in gathered.results if (one := each.reports.get(LabelAccuracy)) is not None]
        if not sent or state.stopped:
            return state
        return state.after(sum(sent) / len(sent), self.patience, counts=gathered.broadcast.round > self.monitor_after)

    def findings(
        self, state: PrestoppingState, clients: Mapping[int, ClientState], known: Payload
    ) -> tuple[Finding, ...]:
        """The monitored accuracy, whether clients correct, and the shares of wrong labels that matrices imply."""
        return tuple(self._found(state, clients))

    def _found(self, state: PrestoppingState, clients: Mapping[int, ClientState]) -> Iterator[Finding]:
        yield Scalar("monitored", state.latest)
        yield Scalar("corrects", float(state.stopped))
        if kept := kept_by_client(clients, NoiseMatrix):
            levels = torch.full((state.clients,), torch.nan, dtype=torch.float64)
            for client, matrix in kept.items():
                levels[client] = matrix.noise
            yield EstimatedNoise(levels)
