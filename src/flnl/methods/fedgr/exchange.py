"""FedGR's exchange: clients send the loss of each sample, the server sends back how probably each label is right."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flnl.core.findings import EstimatedNoise, Finding, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import Exchange, Setting
from flnl.core.payload import Params, Payload
from flnl.core.ranges import Share, StageNumber
from flnl.core.reported import PerSample
from flnl.core.stored import stored
from flnl.methods.fedgr.sieve import NO_LABEL, Sieve, pseudo_labels
from flnl.numerics.losses import sample_losses

WEAK_VIEW = "weak view"
"""The random stream of the view on which pseudo-labels, features and the teacher's logits are computed."""


@stored("SentSampleLosses")
class SampleLosses:
    """Sent to the server: the client's mean losses."""

    values: PerSample  # float64 [n]


@stored("RightLabels")
class RightLabels:
    """Sent to a client that has been visited: how probably each of its labels is right."""

    values: Tensor  # float64 [n]


@stored("MeanLosses")
class MeanLosses:
    """Kept on the client: the losses of the models that it has received, averaged over its visits."""

    values: Tensor  # float64 [n]
    visits: int

    def including(self, losses: Tensor) -> "MeanLosses":
        """With the losses [n] of one more visit."""
        visits = self.visits + 1
        return MeanLosses(self.values + (losses - self.values) / visits, visits)


@stored("RefinedLabels")
class RefinedLabels:
    """Read in a client's visit, and kept: what the visit makes of the labels."""

    right: Tensor  # float64 [n], the weight of the given label; 1 before labels are refined
    labels: Tensor  # int64 [n], pseudo-labels; -1 for none
    high: bool  # whether the client learns from pseudo-labels alone
    noise: float  # share of samples whose label is probably wrong
    labelled: float  # share of samples with a pseudo-label
    judged: Tensor  # int64 [n], the labels that the client held


@stored("LabelSieveState")
class LabelSieveState:
    """The server's state."""

    clients: int
    right: Mapping[int, Tensor]  # float64 [n] of each client that has reported


@dataclass(frozen=True)
class LabelSieve(Exchange):
    """One mixture of the mean losses of a round's clients tells right labels from wrong ones.

    A visit begins by adding the received model's losses to the client's mean losses, which are sent. From stage
    ``stage`` on, it refines labels by the probabilities after the client's last visit. ``sticky``: a pseudo-label stays
    until another takes its place, as in the authors' program.
    """

    sends: ClassVar[tuple[type, ...]] = (RightLabels, RefinedLabels)
    reports: ClassVar[tuple[type, ...]] = (SampleLosses,)
    keeps: ClassVar[tuple[type, ...]] = (MeanLosses, RefinedLabels)
    reveals: ClassVar[Mapping[type, float]] = {SampleLosses: math.inf}
    beta: Share
    confidence: Share
    threshold: Share
    sticky: bool
    sieve: Sieve
    stage: StageNumber

    def begins(self, lengths: Sequence[int]) -> int:
        """The first round of the stage that refines labels."""
        return sum(lengths[: self.stage - 1])

    def caution(self, setting: Setting) -> str | None:
        """Warns that labels are refined before any loss is known, or never."""
        before, after = sum(setting.lengths[: self.stage - 1]), sum(setting.lengths[self.stage - 1 :])
        if before and after:
            return None
        what = "before the first round: no loss is known then" if after else "after the last round: never"
        return f"{setting.key}.stage={self.stage} refines labels {what}; give the stages on both sides of it rounds"

    def init(self, clients: int, params: Params) -> LabelSieveState:
        return LabelSieveState(clients, {})

    def send(self, state: LabelSieveState, client: int, clock: Clock) -> tuple[Any, ...]:
        """The probabilities after the client's last visit."""
        return (RightLabels(state.right[client]),) if client in state.right else ()

    def begin(self, network: Model, task: ClientTask) -> tuple[Payload, Payload]:
        """The mean losses with the received model's, and the refined labels."""
        losses, before = sample_losses(network.received(task), task.labels), task.state.extras.get(MeanLosses)
        mean = MeanLosses(losses, 1) if before is None else before.including(losses)
        sent = task.broadcast.extras.get(RightLabels)
        refined = self._refined(network, task, torch.ones_like(losses) if sent is None else sent.values)
        return Payload(refined), Payload(mean, refined)

    def _refined(self, network: Model, task: ClientTask, right: Tensor) -> RefinedLabels:
        noisy = right < self.threshold
        noise = float(noisy.double().mean())
        if task.broadcast.stage < self.stage:
            none = torch.full_like(task.labels, NO_LABEL)
            return RefinedLabels(torch.ones_like(right), none, False, noise, 0.0, task.labels)
        high = noise >= self.beta
        probabilities = network.received(task, task.stream(WEAK_VIEW)).double().softmax(1)
        labels = pseudo_labels(probabilities, task.labels, noisy, high=high, confidence=self.confidence)
        if self.sticky and (earlier := task.state.extras.get(RefinedLabels)) is not None:
            labels = torch.where(labels == NO_LABEL, earlier.labels, labels)
        return RefinedLabels(right, labels, high, noise, float((labels != NO_LABEL).double().mean()), task.labels)

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """The mean losses, which the visit began with."""
        return Payload(SampleLosses(task.state.extras.one(MeanLosses).values)), Payload()

    def receive(self, state: LabelSieveState, reports: Mapping[int, Payload], seed: int) -> LabelSieveState:
        """The probabilities of the clients that have reported; others keep theirs."""
        losses = {k: sent.values for k, report in reports.items() if (sent := report.get(SampleLosses)) is not None}
        return LabelSieveState(state.clients, {**state.right, **self.sieve(losses)})

    def own(self, state: LabelSieveState, client: int) -> LabelSieveState:
        """How probably each label of the client is right."""
        return LabelSieveState(state.clients, {c: right for c, right in state.right.items() if c == client})

    def findings(
        self, state: LabelSieveState, clients: Mapping[int, ClientState], known: Payload
    ) -> tuple[Finding, ...]:
        """The samples whose labels are probably wrong, and their share on each client."""
        if not state.right:
            return ()
        level = torch.full((state.clients,), torch.nan, dtype=torch.float64)
        suspected = []
        for client, refined in kept_by_client(clients, RefinedLabels).items():
            wrong = 1 - state.right[client]
            mask = state.right[client] < self.threshold
            level[client] = mask.double().mean()
            suspected.append(SuspectedSamples(client, mask, wrong, refined.judged))
        return (*suspected, EstimatedNoise(level))
