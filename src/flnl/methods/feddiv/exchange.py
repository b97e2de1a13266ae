"""FedDiv's exchange: clients send their local filter (six numbers), the server sends the federated filter.

A filter is fitted to losses under the local model and applied to losses under the global one (FedDiv, Steps 2, 4, 6).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, ClassVar, Literal

import torch
from torch import Tensor

from flnl.core.execution import ClientJob
from flnl.core.findings import Finding, SuspectedSamples
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, Opened, kept_by_client
from flnl.core.model import Model
from flnl.core.parts import Exchange
from flnl.core.payload import Params, Payload
from flnl.core.ranges import Neutral, NonNegative, Share
from flnl.core.reported import OfSamples
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


@stored("LocalFilter")
class LocalFilter:
    """Sent to the server after training: the client's filter, and n_k, which the server knows from FedAvg anyway."""

    filter: Filter
    count: Annotated[int, OfSamples()]


@stored("ClassBias")
class ClassBias:
    """Kept on the client: p̂, float64 [K] (Eq. 12), and the number of visits since the filter has been in use."""

    mean: Tensor
    visits: int


@stored("LastPredictions")
class LastPredictions:
    """Kept on the client under ``pcs=cached``: ỹ, int64 [n], the debiased local predictions after its last training."""

    labels: Tensor


@stored("FilterFlags")
class FilterFlags:
    """Kept on the client: the filter's output for its samples at its last visit."""

    clean: Tensor  # bool [n]
    probability: Tensor  # float64 [n], p(clean)
    labels: Tensor | None  # int64 [n], the labels that were judged; None for the given labels


@stored("FilterState")
class FilterState:
    """The server's state: the last filter of every client that has sent one, with its n_k."""

    cached: Mapping[int, Filter] = field(default_factory=dict)
    counts: Mapping[int, int] = field(default_factory=dict)
    reported: tuple[int, ...] = ()  # clients of the last reports
    start: Filter | None = None  # initial filter under ``init=blobs``, for clients without a better one
    shared: Filter | None = None  # filter sent to all clients, updated with each report; None under ``reach=local``


@dataclass(frozen=True)
class FirstFit:
    """Job: fit a client's first filter by EM, starting from the best cut of its losses; uses no random numbers."""

    loss: LossKind
    norm: LossNorm
    inference_augment: bool

    def __call__(self, network: Model, task: ClientTask) -> Opened:
        """Report the filter; nothing if the client's losses are all equal."""
        logits = received_logits(network, task, augmented=self.inference_augment)
        fitted = first_fit(filter_losses(logits, task.labels, loss=self.loss, norm=self.norm))
        return Opened(task.client, Payload() if fitted is None else Payload(LocalFilter(fitted, len(task.samples))))


def received_logits(network: Model, task: ClientTask, *, augmented: bool) -> Tensor:
    """The received model's logits [n, K] on the client's samples, computed once per visit."""
    return network.received(task, task.stream("filter augmentation") if augmented else None)


@dataclass(frozen=True)
class NoiseFilter(Exchange):
    """Local filters cached on the server and averaged over clients (FedDiv, Eqs. 2 to 5, 12; Algorithm 2).

    ``init=after_warmup``: before the stage, every client fits a filter under the global model, which fills the cache
    and gives W(0). ``init=blobs``, as in the withdrawn code: W(0) is independent of the clients, and only clients that
    have trained enter the mean. ``reach`` selects the filter that a client receives: the mean over all clients, the
    mean over those of the last round (``degraded``), or the client's filter (``local``). A client whose losses allow no
    fit and that has received no filter sends none.

    ``threshold`` and the guards equal those of the batch rule; here they define the flagged samples in the record.
    """

    sends: ClassVar[tuple[type, ...]] = (Filter,)
    reports: ClassVar[tuple[type, ...]] = (LocalFilter,)
    keeps: ClassVar[tuple[type, ...]] = (ClassBias, LastPredictions, FilterFlags)
    init_from: Literal["after_warmup", "blobs"]
    reach: Reach
    variance: VarianceRule
    sort: bool
    loss: LossKind
    norm: LossNorm
    threshold: Share
    guard: bool
    guard_above: Annotated[bool, Neutral(False)]
    m: Share
    bias_samples: Literal["all", "confident"]
    xi: NonNegative
    pcs: Literal["per_epoch", "cached", "off"]
    inference_augment: bool

    def init(self, clients: int, params: Params) -> FilterState:
        return FilterState()

    def before_round(self, state: FilterState, clock: Clock) -> ClientJob[Opened] | None:
        """The job that fits every client's first filter, before the first round of a stage."""
        if self.init_from == "blobs" or clock.stage_round:
            return None
        return FirstFit(self.loss, self.norm, self.inference_augment)

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """Report the filter fitted under the trained model, starting from the received one; keep p̂ and the flags."""
        received, labels = task.broadcast.extras.get(Filter), task.labels
        logits = network.logits(task.samples, task.stream("bias augmentation") if self.inference_augment else None)
        losses = filter_losses(logits, labels, loss=self.loss, norm=self.norm)
        fitted = first_fit(losses) if received is None else noise_filter.fit(losses, received, sort=self.sort)
        up = Payload() if fitted is None else Payload(LocalFilter(fitted, len(labels)))

        before = task.state.extras.get(ClassBias) or ClassBias(no_bias(network.num_classes), 0)
        mean = next_bias(before.mean, logits, self.m, samples=self.bias_samples, xi=self.xi)
        keep = Payload(ClassBias(mean, before.visits + 1))
        if self.pcs == "cached":
            keep = keep.including(LastPredictions(debiased(logits.double(), mean, self.xi).argmax(1)))
        if received is not None:
            keep = keep.including(self._flags(received_logits(network, task, augmented=self.inference_augment), task))
        return up, keep

    def _flags(self, logits: Tensor, task: ClientTask) -> FilterFlags:
        by = task.broadcast.extras.one(Filter)
        losses = filter_losses(logits, task.labels, loss=self.loss, norm=self.norm)
        clean = clean_flags(losses, by, threshold=self.threshold, guard=self.guard, guard_above=self.guard_above)
        probability = torch.from_numpy(posterior_of_clean(losses, by))
        return FilterFlags(torch.from_numpy(clean), probability, task.state.labels)

    def receive(self, state: FilterState, reports: Mapping[int, Payload], seed: int) -> FilterState:
        """Replace cached filters by reported ones (Eq. 4)."""
        filters = {c: r.one(LocalFilter) for c, r in reports.items() if r.get(LocalFilter) is not None}
        start = state.start
        if start is None and self.init_from == "blobs":
            start = blobs(stream(seed, "filter blobs"))
        if not filters:
            return replace(state, start=start)
        cached = {**state.cached, **{c: f.filter for c, f in filters.items()}}
        counts = {**state.counts, **{c: f.count for c, f in filters.items()}}
        reported = tuple(sorted(filters))
        shared = None
        if self.reach != "local":
            shared = filter_of(reported[0], cached, counts, reported, reach=self.reach, variance=self.variance)
        return FilterState(cached, counts, reported, start, shared)

    def broadcast(self, state: FilterState, clock: Clock) -> tuple[Any, ...]:
        """The filter for all clients; nothing if there is none yet, or if each has its own."""
        return () if self.reach == "local" else _if_any(state.shared or state.start)

    def send(self, state: FilterState, client: int, clock: Clock) -> tuple[Any, ...]:
        """The client's own filter under ``reach=local``; nothing if there is none yet."""
        return _if_any(state.cached.get(client) or state.start) if self.reach == "local" else ()

    def findings(self, state: FilterState, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """Each client's flagged samples at its last visit, scored by the probability that the label is wrong."""
        flags = kept_by_client(clients, FilterFlags)
        return tuple(SuspectedSamples(c, ~f.clean, 1 - f.probability, f.labels) for c, f in flags.items())


def _if_any(current: Filter | None) -> tuple[Filter, ...]:
    return () if current is None else (current,)
