"""FedPeer's exchange: clients send randomised label counts once, the server sends the recovered distribution.

A client randomises its labels only once, before the first stage that needs them: each further draw would cost another
ε.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from flnl.core.execution import ClientJob
from flnl.core.findings import Finding, LabelShares
from flnl.core.messages import ClientState, ClientTask, Clock, Opened
from flnl.core.model import Model
from flnl.core.parts import Exchange
from flnl.core.payload import Params, Payload
from flnl.core.ranges import StageNumber
from flnl.core.reported import SamplesPerClass
from flnl.core.stored import stored
from flnl.numerics.randomised_response import Epsilon, Projection, RandomisedResponse
from flnl.numerics.scaling import label_shares


@stored("PrivacySpent")
class PrivacySpent:
    """ε spent by each client. It accumulates over releases, so labels are randomised only once."""

    epsilon: Mapping[int, float] = field(default_factory=dict)

    def of(self, client: int) -> float:
        """ε spent by a client; 0 before its first release."""
        return self.epsilon.get(client, 0.0)

    def released(self, client: int, epsilon: float) -> "PrivacySpent":
        """The account after one more release."""
        return PrivacySpent({**self.epsilon, client: self.of(client) + epsilon})

    @property
    def most(self) -> float:
        """The largest ε that any client has spent."""
        return max(self.epsilon.values(), default=0.0)


PeerDistribution = Literal["global_dp", "global_true", "local", "uniform"]


@stored("LabelCounts")
class LabelCounts:
    """Sent to the server once: the count of each class among a client's labels, randomised or not."""

    values: SamplesPerClass  # int64 [K]


@stored("LabelDistribution")
class LabelDistribution:
    """Sent to clients: the server's estimate q of the distribution of all clients' labels."""

    shares: Tensor  # float64 [K]


@stored("OwnDistribution")
class OwnDistribution:
    """Kept on the client under ``local`` and ``uniform``: the distribution q of its peer labels."""

    shares: Tensor  # float64 [K]


@stored("LabelsKnown")
class LabelsKnown:
    """Known on the server once labels have been shared."""

    shares: Tensor  # float64 [K], q
    epsilon: float  # the largest ε that any client has spent
    least: float  # smallest entry before the projection; negative if the privacy noise outweighs a rare class


@stored("SharedLabels")
class SharedLabels:
    """The server's state."""

    counts: Tensor | None = None  # int64 [K], sum of all reported counts
    known: LabelsKnown | None = None
    spent: PrivacySpent = field(default_factory=PrivacySpent)


@dataclass(frozen=True)
class ShareLabels:
    """Job: share a client's label counts, once."""

    kind: PeerDistribution
    epsilon: Epsilon

    def __call__(self, network: Model, task: ClientTask) -> Opened:
        """Report label counts; under ``local`` and ``uniform`` keep a distribution on the client instead."""
        labels, classes = task.labels.numpy(), network.num_classes
        if self.kind == "global_dp":
            draws = task.secret_stream("label privacy", labels, self.epsilon, classes)
            labels = RandomisedResponse(self.epsilon, classes).randomised(labels, draws)
        if self.kind in ("global_dp", "global_true"):
            counts = torch.from_numpy(np.bincount(labels, minlength=classes))
            return Opened(task.client, Payload(LabelCounts(counts)))
        shares = label_shares(labels, classes) if self.kind == "local" else np.full(classes, 1 / classes)
        return Opened(task.client, Payload(), Payload(OwnDistribution(torch.from_numpy(shares))))


@dataclass(frozen=True)
class LabelSharing(Exchange):
    """Label communication (FedPeer, Sec. 4.1 and Algorithm 1), before the first round of stage ``stage``.

    ``peer_dist`` is the distribution of peer labels: ``global_dp``, recovered by the server from randomised labels;
    ``global_true``, the shares of all given labels, sent without privacy; ``local``, the shares of the client's given
    labels; ``uniform``, equal shares. For the last two nothing is sent.
    """

    sends: ClassVar[tuple[type, ...]] = (LabelDistribution,)
    reports: ClassVar[tuple[type, ...]] = (LabelCounts,)
    keeps: ClassVar[tuple[type, ...]] = (OwnDistribution,)
    knows: ClassVar[tuple[type, ...]] = (LabelsKnown,)
    epsilon: Epsilon
    peer_dist: PeerDistribution
    projection: Projection
    stage: StageNumber

    @property
    def reveals(self) -> Mapping[type, float]:
        """The counts of labels, randomised with ε or in the clear; nothing if the distribution stays on clients."""
        spent = {"global_dp": self.epsilon, "global_true": math.inf}.get(self.peer_dist)
        return {} if spent is None else {LabelCounts: spent}

    def init(self, clients: int, params: Params) -> SharedLabels:
        return SharedLabels()

    def before_round(self, state: SharedLabels, clock: Clock) -> ClientJob[Opened] | None:
        """The job of sharing labels, before the first round of the stage only."""
        first = (clock.stage, clock.stage_round) == (self.stage, 0)
        return ShareLabels(self.peer_dist, self.epsilon) if first else None

    def receive(self, state: SharedLabels, reports: Mapping[int, Payload], seed: int) -> SharedLabels:
        """Add the counts up, account for the ε they cost, and recover q from the sum."""
        counts, spent = state.counts, state.spent
        for client, report in reports.items():
            if (reported := report.get(LabelCounts)) is None:
                continue
            counts = reported.values if counts is None else counts + reported.values
            if self.peer_dist == "global_dp":
                spent = spent.released(client, self.epsilon)
        if counts is None or counts is state.counts:
            return state
        shares = counts.double().numpy() / int(counts.sum())
        if self.peer_dist == "global_true":
            return replace(state, counts=counts, known=LabelsKnown(torch.from_numpy(shares), 0.0, float(shares.min())))
        response = RandomisedResponse(self.epsilon, len(counts))
        q = torch.from_numpy(response.distribution(shares, self.projection))
        return SharedLabels(counts, LabelsKnown(q, spent.most, float(response.recovered(shares).min())), spent)

    def broadcast(self, state: SharedLabels, clock: Clock) -> tuple[Any, ...]:
        return () if state.known is None else (LabelDistribution(state.known.shares),)

    def known(self, state: SharedLabels) -> tuple[Any, ...]:
        """q, and the ε it cost, once known."""
        return () if state.known is None else (state.known,)

    def findings(self, state: SharedLabels, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """The distribution q and the ε it cost, once known."""
        q = state.known
        return () if q is None else (LabelShares(q.shares, q.least, q.epsilon),)
