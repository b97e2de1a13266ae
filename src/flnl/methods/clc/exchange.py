"""CLC's exchange: class confidences up, thresholds down; each client holds out samples that they contradict."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from flnl.core.execution import ClientJob
from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, Opened, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import Exchange
from flnl.core.payload import Payload
from flnl.core.ranges import Count, Share
from flnl.core.stored import stored
from flnl.methods.clc.consensus import ClassConfidence, ClassThresholds, confidence, consensus, doubt
from flnl.parts.messages import UsedSamples


@stored("HeldOut")
class HeldOut:
    """Kept on the client, and read in its visit: what it held out in its last one."""

    mask: Tensor  # bool [n]
    margin: Tensor  # float64 [n]
    labels: Tensor  # int64 [n], the labels that were judged
    likely: Tensor  # int64 [n], the likely class; -1 for none


@dataclass(frozen=True)
class MeasureConfidence:
    """Job: the received model's mean probability of the labels that the client holds, by class."""

    decimals: Count | None

    def __call__(self, network: Model, task: ClientTask) -> Opened:
        """Report it."""
        probabilities = network.received(task).double().softmax(1)
        return Opened(task.client, Payload(confidence(probabilities, task.labels, self.decimals)))


@dataclass(frozen=True)
class Consensus(Exchange):
    """Before every round, all clients report their class confidences; their consensus are this round's thresholds.

    A sample is held out of this visit where a class other than its label is likely, and the largest probability exceeds
    the label's by more than ``margin``. Probabilities are the received model's, in eval mode and without augmentation.
    ``decimals`` rounds confidences, as the authors' program does to 3; null sends them as they are.
    """

    sends: ClassVar[tuple[type, ...]] = (ClassThresholds, HeldOut)
    reports: ClassVar[tuple[type, ...]] = (ClassConfidence, UsedSamples)
    keeps: ClassVar[tuple[type, ...]] = (HeldOut,)
    reveals: ClassVar[Mapping[type, float]] = {ClassConfidence: math.inf}
    margin: Share
    decimals: Count | None

    def before_round(self, state: Any, clock: Clock) -> ClientJob[Opened]:
        return MeasureConfidence(self.decimals)

    def receive(self, state: Any, reports: Mapping[int, Payload], seed: int) -> ClassThresholds | None:
        """The consensus of those who have reported confidences, if anyone has."""
        sent = [one for report in reports.values() if (one := report.get(ClassConfidence)) is not None]
        return consensus(sent) if sent else state

    def broadcast(self, state: ClassThresholds | None, clock: Clock) -> tuple[Any, ...]:
        return () if state is None else (state,)

    def begin(self, network: Model, task: ClientTask) -> tuple[Payload, Payload]:
        """The samples to hold out, for this visit and for the record."""
        thresholds = task.broadcast.extras.one(ClassThresholds).values
        probabilities = network.received(task).double().softmax(1)
        found = doubt(probabilities, task.labels, thresholds, self.margin)
        held_out = HeldOut(found.held_out, found.margin, task.labels, found.likely)
        return Payload(held_out), Payload(held_out)

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        return Payload(UsedSamples(int((~task.visit.one(HeldOut).mask).sum()))), Payload()

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """The samples that each client held out in its last visit, scored by how far its label is behind."""
        return tuple(
            SuspectedSamples(client, kept.mask, kept.margin, kept.labels)
            for client, kept in kept_by_client(clients, HeldOut).items()
        )
