"""FedDiv's exchange: a client's filter of six numbers up, the federated filter down.

A filter is fitted to losses under the local model and used on losses under the global one (FedDiv, Steps 2, 4 and 6).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flnl.core.execution import ClientJob
from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Fit, Opened
from flnl.core.model import Model
from flnl.core.parts import Exchange
from flnl.core.payload import Payload
from flnl.core.ranges import NonNegative, Share
from flnl.core.stored import stored
from flnl.core.streams import stream
from flnl.methods.feddiv import noise_filter
from flnl.methods.feddiv.consistency import debiased, next_bias, no_bias
from flnl.methods.feddiv.noise_filter import (
    Filter,
    LossKind,
    LossNorm,
    Reach,
    VarianceRule,
    blobs,
    clean_flags,
    filter_losses,
    filter_of,
    first_fit,
    posterior_of_clean,
)


@dataclass(frozen=True)
class LocalFilter:
    """Sent up after training: the client's filter, and n_k, which the server has from FedAvg anyway."""

    filter: Filter
    count: int


@stored("ClassBias")
@dataclass(frozen=True)
class ClassBias:
    """Kept on the client: p̂, float64 [K] (Eq. 12), and how often the client has trained beside the filter."""

    mean: Tensor
    visits: int


@stored("LastPredictions")
@dataclass(frozen=True)
class LastPredictions:
    """Kept on the client under ``pcs=cached``: ỹ, int64 [n], the de-biased local labels after its last training."""

    labels: Tensor


@stored("FilterFlags")
@dataclass(frozen=True)
class FilterFlags:
    """Kept on the client: what the filter made of its samples at its last visit, clean bool [n] and p(clean) [n]."""

    clean: Tensor
    probability: Tensor  # float64
    labels: Tensor | None  # int64 [n], those that it judged; None where they were as given


@stored("FilterState")
@dataclass(frozen=True)
class FilterState:
    """The server's record: the last filter of every client that has sent one, with its n_k."""

    cached: Mapping[int, Filter] = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)
    reported: tuple[int, ...] = ()  # clients whose filters came last, all at once
    start: Filter | None = None  # for those of whom nothing is known, under ``init=blobs``
    shared: Filter | None = None  # that all are sent alike, made when filters came; none where each is sent its own


@dataclass(frozen=True)
class FirstFit:
    """The job of a first filter: EM from the best cut of the losses under the received model, which seeds nothing."""

    loss: LossKind
    norm: LossNorm
    inference_augment: bool

    def __call__(self, network: Model, task: ClientTask) -> Opened:
        """The filter; nothing from a client whose losses are all alike."""
        network.load(task.broadcast.params)
        logits = network.logits(task.samples, task.stream("filter augmentation") if self.inference_augment else None)
        found = first_fit(filter_losses(logits, task.labels, loss=self.loss, norm=self.norm))
        return Opened(task.client, Payload() if found is None else Payload(LocalFilter(found, len(task.samples))))


def received_logits(network: Model, task: ClientTask, *, augmented: bool) -> Tensor:
    """The received model's logits [n, K] on the client's samples, computed once a visit."""
    return network.received(task, task.stream("filter augmentation") if augmented else None)


@dataclass(frozen=True)
class NoiseFilter(Exchange):
    """Local filters cached on the server and averaged over clients (FedDiv, Eqs. 2 to 5, 12; Algorithm 2).

    ``init=after_warmup``: before the stage every client fits once under the global model, which gives W(0) and a full
    cache. ``init=blobs`` is the withdrawn code's: W(0) knows of no client and only those that have trained count.
    ``reach`` is what a client receives: the mean over all clients, over those of the last round (``degraded``), or its
    own filter (``local``). A client without any filter sends none until it can fit one.

    ``threshold`` and ``guard`` are those of the batch rule: they say which samples were flagged, for the record.
    """

    sends: ClassVar[tuple[type, ...]] = (Filter,)
    keeps: ClassVar[tuple[type, ...]] = (ClassBias, LastPredictions, FilterFlags)
    init_from: Literal["after_warmup", "blobs"]
    reach: Reach
    variance: VarianceRule
    sort: bool
    loss: LossKind
    norm: LossNorm
    threshold: Share
    guard: bool
    m: Share
    bias_samples: Literal["all", "confident"]
    xi: NonNegative
    pcs: Literal["per_epoch", "cached", "off"]
    inference_augment: bool

    def init(self, clients: int) -> FilterState:
        """No filter is known."""
        return FilterState()

    def before_stage(self, stage: int) -> ClientJob[Opened] | None:
        """Every client's first filter."""
        if self.init_from == "blobs":
            return None
        return FirstFit(self.loss, self.norm, self.inference_augment)

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """The filter under the model just trained, from the received one on; what stays is p̂ and the flags."""
        received, labels = task.broadcast.extras.get(Filter), task.labels
        logits = network.logits(task.samples, task.stream("bias augmentation") if self.inference_augment else None)
        losses = filter_losses(logits, labels, loss=self.loss, norm=self.norm)
        found = first_fit(losses) if received is None else noise_filter.fit(losses, received, sort=self.sort)
        up = Payload() if found is None else Payload(LocalFilter(found, len(labels)))

        was = task.state.extras.get(ClassBias) or ClassBias(no_bias(network.num_classes), 0)
        mean = next_bias(was.mean, logits, self.m, samples=self.bias_samples, xi=self.xi)
        keep = Payload(ClassBias(mean, was.visits + 1))
        if self.pcs == "cached":
            keep = keep.including(LastPredictions(debiased(logits.double(), mean, self.xi).argmax(1)))
        if received is not None:
            keep = keep.including(self._flags(received_logits(network, task, augmented=self.inference_augment), task))
        return up, keep

    def _flags(self, logits: Tensor, task: ClientTask) -> FilterFlags:
        by = task.broadcast.extras.one(Filter)
        losses = filter_losses(logits, task.labels, loss=self.loss, norm=self.norm)
        clean = clean_flags(losses, by, threshold=self.threshold, guard=self.guard)
        probability = torch.from_numpy(posterior_of_clean(losses, by))
        return FilterFlags(torch.from_numpy(clean), probability, task.state.labels)

    def receive(self, state: FilterState, reports: Mapping[int, Payload], seed: int) -> FilterState:
        """Filters that came replace those that were cached (Eq. 4)."""
        found = {c: r.one(LocalFilter) for c, r in reports.items() if r.get(LocalFilter) is not None}
        start = state.start
        if start is None and self.init_from == "blobs":
            start = blobs(stream(seed, "filter blobs"))
        if not found:
            return replace(state, start=start)
        cached = {**state.cached, **{c: f.filter for c, f in found.items()}}
        counts = {**state.counts, **{c: f.count for c, f in found.items()}}
        reported = tuple(sorted(found))
        shared = None
        if self.reach != "local":
            shared = filter_of(reported[0], cached, counts, reported, reach=self.reach, variance=self.variance)
        return FilterState(cached, counts, reported, start, shared)

    def send(self, state: FilterState, client: int) -> tuple[Any, ...]:
        """The filter that this client is to use; nothing while there is none."""
        found = state.cached.get(client) if self.reach == "local" else state.shared
        found = found or state.start
        return () if found is None else (found,)

    def findings(self, state: FilterState, clients: Mapping[int, ClientState]) -> tuple[Finding, ...]:
        """The flags of each client at its last visit, scored by the probability that a label is wrong."""
        flags = ((client, kept.extras.get(FilterFlags)) for client, kept in clients.items())
        return tuple(SuspectedSamples(c, ~f.clean, 1 - f.probability, f.labels) for c, f in flags if f is not None)
