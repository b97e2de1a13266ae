"""RoFL's exchange: clients send their class-wise centroids after training, the server sends the global ones."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor

from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import Exchange, Part
from flnl.core.payload import Params, Payload
from flnl.core.reported import MayBeInfinite, SamplesPerClass, Shaped
from flnl.core.stored import stored
from flnl.methods.rofl.centroids import GlobalCentroids, combined
from flnl.methods.rofl.loss import RoFL, Visit


@stored("ClientCentroids")
class ClientCentroids:
    """Sent to the server after training: the client's centroids, and its number of samples of each class."""

    values: Annotated[Tensor, Shaped("float", ("K", "d")), MayBeInfinite()]  # float [C, D]
    counts: SamplesPerClass  # int64 [C]


@stored("CentroidState")
class CentroidState:
    """The server's state."""

    values: Tensor | None = None  # f_G, float [C, D]; None until a client has reported


@stored("DoubtedSamples")
class DoubtedSamples:
    """Kept on the client, for the record only: what the last epoch of its last visit made of its samples."""

    mask: Tensor  # bool [n], samples that were left out, or whose nearest centroid is not that of their label
    loss: Tensor  # float [n], cross-entropy of the labels
    labels: Tensor | None  # int64 [n], the labels that were judged; None for the given labels


@dataclass(frozen=True)
class ClassCentroids(Exchange):
    """The server weights each client's centroid of a class by its cosine with the global one (Yang et al. 2022)."""

    sends: ClassVar[tuple[type, ...]] = (GlobalCentroids,)
    reports: ClassVar[tuple[type, ...]] = (ClientCentroids,)
    keeps: ClassVar[tuple[type, ...]] = (DoubtedSamples,)
    reveals: ClassVar[Mapping[type, float]] = {ClientCentroids: math.inf}

    def lacks(self, stage: Sequence[Part]) -> Sequence[str]:
        return () if any(isinstance(part, RoFL) for part in stage) else ("method/local=[rofl]",)

    def init(self, clients: int, params: Params) -> CentroidState:
        return CentroidState()

    def broadcast(self, state: CentroidState, clock: Clock) -> tuple[Any, ...]:
        return () if state.values is None else (GlobalCentroids(state.values),)

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """Send the centroids at the end of the visit; keep which samples were doubted."""
        visit = fit.state_of(Visit)
        if visit is None:
            return Payload(), Payload()
        counts = torch.bincount(task.labels, minlength=network.num_classes)
        doubted = DoubtedSamples(visit.doubted.cpu(), visit.loss.cpu(), task.state.labels)
        return Payload(ClientCentroids(visit.centroids.cpu(), counts)), Payload(doubted)

    def receive(self, state: CentroidState, reports: Mapping[int, Payload], seed: int) -> CentroidState:
        """Combine the reported centroids, in the order of clients; those that are not finite are left out."""
        sent = [one for c in sorted(reports) if (one := reports[c].get(ClientCentroids)) is not None]
        sent = [one for one in sent if bool(one.values.isfinite().all())]
        if not sent:
            return state
        clients = torch.stack([one.values.double() for one in sent])
        before = torch.zeros_like(clients[0]) if state.values is None else state.values.double()
        values = combined(before, clients, torch.stack([one.counts for one in sent]))
        return CentroidState(values.to(sent[0].values.dtype))

    def findings(self, state: CentroidState, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """The samples doubted at each client's last visit, scored by loss."""
        kept = kept_by_client(clients, DoubtedSamples)
        return tuple(SuspectedSamples(c, doubted.mask, doubted.loss, doubted.labels) for c, doubted in kept.items())
