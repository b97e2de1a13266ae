"""FedPeer's exchange: how often each label occurs, told once and privately; their recovered distribution down.

A client randomises its labels before the first stage that needs them and never again: every further draw would cost
another ε.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from flnl.core.execution import ClientJob
from flnl.core.findings import Finding, LabelShares
from flnl.core.messages import ClientState, ClientTask, Opened
from flnl.core.model import Model
from flnl.core.parts import Exchange
from flnl.core.payload import Payload
from flnl.core.ranges import PositiveCount
from flnl.core.stored import stored
from flnl.methods.fedpeer.privacy import (
    Epsilon,
    PeerDistribution,
    PrivacySpent,
    Projection,
    RandomisedResponse,
    peer_distribution,
)
from flnl.numerics.scaling import label_shares


@dataclass(frozen=True)
class LabelCounts:
    """Sent up once: how often each class occurs among a client's labels, randomised or as they are."""

    values: Tensor  # int64 [K]


@dataclass(frozen=True)
class LabelDistribution:
    """Sent down: the distribution q of all clients' labels as the server knows it."""

    shares: Tensor  # float64 [K]


@stored("OwnDistribution")
@dataclass(frozen=True)
class OwnDistribution:
    """Kept on a client that asks nobody: the distribution q that it draws from."""

    shares: Tensor  # float64 [K]


@stored("LabelsKnown")
@dataclass(frozen=True)
class LabelsKnown:
    """Known on the server once labels have been shared."""

    shares: Tensor  # float64 [K], q
    epsilon: float  # spent by the client that spent most
    least: float  # smallest entry before the projection; negative where noise outweighs a rare class


@stored("SharedLabels")
@dataclass(frozen=True)
class SharedLabels:
    """The server's record."""

    counts: Tensor | None = None  # int64 [K], of all clients' labels as they came up
    known: LabelsKnown | None = None
    spent: PrivacySpent = field(default_factory=PrivacySpent)


@dataclass(frozen=True)
class ShareLabels:
    """The job of telling, once, how often each label occurs."""

    kind: PeerDistribution
    epsilon: Epsilon

    def __call__(self, network: Model, task: ClientTask) -> Opened:
        """Counts that travel, or a distribution of the client's own that does not."""
        labels, classes = task.labels.numpy(), network.num_classes
        if self.kind == "global_dp":
            labels = RandomisedResponse(self.epsilon, classes).randomised(labels, task.stream("label privacy"))
        if self.kind in ("global_dp", "global_true"):
            counts = torch.from_numpy(np.bincount(labels, minlength=classes))
            return Opened(task.client, Payload(LabelCounts(counts)))
        shares = label_shares(labels, classes)
        own = peer_distribution(self.kind, recovered=shares, given=shares, local=shares)
        return Opened(task.client, Payload(), Payload(OwnDistribution(torch.from_numpy(own))))


@dataclass(frozen=True)
class LabelSharing(Exchange):
    """Label communication (FedPeer, Sec. 4.1 and Algorithm 1), before the first round of stage ``stage``.

    ``peer_dist`` says what peer labels are drawn from: ``global_dp``, what the server recovers from randomised labels;
    ``global_true``, the shares of all given labels, sent as they are and so without privacy; ``local``, the shares of
    the client's own given labels, and ``uniform``, all classes alike, for both of which nothing is sent.
    """

    sends: ClassVar[tuple[type, ...]] = (LabelDistribution,)
    keeps: ClassVar[tuple[type, ...]] = (OwnDistribution,)
    knows: ClassVar[tuple[type, ...]] = (LabelsKnown,)
    epsilon: Epsilon
    peer_dist: PeerDistribution
    projection: Projection
    stage: PositiveCount

    def init(self, clients: int) -> SharedLabels:
        """Nothing is known."""
        return SharedLabels()

    def before_stage(self, stage: int) -> ClientJob[Opened] | None:
        """Labels are shared before one stage."""
        return ShareLabels(self.peer_dist, self.epsilon) if stage == self.stage else None

    def receive(self, state: SharedLabels, reports: Mapping[int, Payload], seed: int) -> SharedLabels:
        """Counts are added up, the privacy that they cost is accounted, and q is recovered anew."""
        counts, spent = state.counts, state.spent
        for client, report in reports.items():
            if (found := report.get(LabelCounts)) is None:
                continue
            counts = found.values if counts is None else counts + found.values
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

    def send(self, state: SharedLabels, client: int) -> tuple[Any, ...]:
        """q, once it is known."""
        return () if state.known is None else (LabelDistribution(state.known.shares),)

    def known(self, state: SharedLabels) -> tuple[Any, ...]:
        """q, and what it cost."""
        return () if state.known is None else (state.known,)

    def findings(self, state: SharedLabels, clients: Mapping[int, ClientState]) -> tuple[Finding, ...]:
        """The distribution q once it is known, and the privacy that it cost."""
        known = state.known
        return () if known is None else (LabelShares(known.shares, known.least, known.epsilon),)
