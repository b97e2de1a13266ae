"""FedES's first stage: estimates the quality of clients' labels from the changes of their parameters.

Clients send nothing additional (except under ``indicator=confidence``): the server compares the models it receives
anyway. In a round in which it does so, it holds the models of all clients of that round in memory.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.findings import EstimatedQuality, Finding, Scalar
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, Gathered, Oracle, ServerSamples
from flnl.core.model import Model
from flnl.core.parts import Exchange, Setting, Wants
from flnl.core.payload import Params, Payload
from flnl.core.ranges import Share, StageNumber
from flnl.core.stored import stored
from flnl.core.streams import stream
from flnl.methods.fedes.contribution import RECORDS, OnBenchmark
from flnl.methods.fedes.criticality import (
    Distance,
    Scope,
    compared,
    criticalities,
    emd,
    flattened,
    profile,
    shared_subset,
)
from flnl.methods.fedes.quality import (
    Indicator,
    SignStatistic,
    quality_of_confidence,
    quality_of_relevance,
    sign_statistic,
    signed,
    unsure_share,
)
from flnl.methods.fedes.selective_decay import ranks
from flnl.numerics.scaling import quality
from flnl.parts.contribution import Drops, Relevance


@stored("ClientQuality")
class ClientQuality:
    """Sent to the client once it is known: ρ_n."""

    value: float


@stored("UnsureShare")
class UnsureShare:
    """Sent to the server under ``indicator=confidence``: the share of samples that the trained model is unsure of."""

    value: Share


@stored("CriticalityRanks")
class CriticalityRanks:
    """Kept on the client: the rank of each entry among all, most critical first; int32, by parameter name."""

    place: Mapping[str, Tensor]


@dataclass(frozen=True)
class ClientQualities:
    """Known on the server: ρ float64 [N], all ones until clients have been compared."""

    value: Tensor


@stored("QualityState")
class QualityState:
    """The server's state: the estimated quality and its basis."""

    rho: Tensor  # float64 [N]
    indicator: Tensor  # float64 [N], d_n or another indicator; NaN for clients without a model
    assessed: Tensor  # bool [N], clients whose quality was estimated
    steps: Tensor  # float64 [N], local steps in the round of comparison; NaN for clients without a model
    record: Relevance | Drops | None = None  # record of the indicators that use clean samples

    @property
    def known(self) -> bool:
        """Whether clients have been compared."""
        return bool(self.assessed.any())


@dataclass(frozen=True)
class Quality(Exchange):
    """Data quality ρ_n of each client, from the last round of stage ``stage`` (FedES, Eqs. 7 to 11).

    g_n are the criticalities of a client, g_s those of the combined model. ``indicator`` defines d_n: ``emd_sign`` is
    ``sgn(μ_n - μ_s) EMD(g_n, g_s)``, ``emd`` the distance, ``mean`` the mean of g_n; ``confidence``, as in the released
    program, uses the shares of unsure predictions of the clients' trained models. ρ is d scaled to [0, 1] over the
    clients, and at least ``floor``. A client without a model in that round gets the mean ρ of the others, and no ranks;
    one without a finite d gets the mean, too.

    Two indicators of other methods (Table 4) are computed over all rounds of the stage, from scores on clean samples
    that the server holds: ``sfedavg_phi`` uses S-FedAvg's selection probabilities, ``fair_qhat`` FAIR's q̂, in place of
    d. ``oracle`` uses the true labels: ρ is the share of right labels, unscaled, and the run is an upper bound.

    ``emd`` selects the entries of g to compare: all, 10 000 quantiles, or 100 000 entries drawn once. With
    ``norm=per_step``, g_n is divided by the client's local steps τ_n, and g_s by ``Σ n τ_n / Σ n``: then clients with
    equal changes per step have distance 0 to the server, whatever their numbers of steps and samples.
    """

    sends: ClassVar[tuple[type, ...]] = (ClientQuality,)
    reports: ClassVar[tuple[type, ...]] = (UnsureShare,)
    keeps: ClassVar[tuple[type, ...]] = (CriticalityRanks,)
    knows: ClassVar[tuple[type, ...]] = (ClientQualities,)
    indicator: Indicator
    sign: SignStatistic
    scope: Scope
    emd: Distance
    norm: Literal["none", "per_step"]
    floor: Share
    confidence: Share
    benchmark: OnBenchmark
    stage: StageNumber

    @property
    def available_from(self) -> int:
        """The stage after ``stage``, in whose last round the clients are compared."""
        return self.stage + 1

    def caution(self, setting: Setting) -> str | None:
        """Warns that clients are never compared, as the stage has no rounds."""
        if setting.lengths[self.stage - 1]:
            return None
        return (
            f"{setting.key} compares clients in the last round of stage {self.stage}, which has none: all keep quality "
            "1 and count by their samples; give that stage rounds"
        )

    def init(self, clients: int, params: Params) -> QualityState:
        """All clients have quality 1 until they are compared."""
        nan, none = torch.full((clients,), torch.nan, dtype=torch.float64), torch.zeros(clients, dtype=torch.bool)
        record = RECORDS[self.indicator](clients) if self.indicator in RECORDS else None
        return QualityState(torch.ones(clients, dtype=torch.float64), nan, none, nan, record)

    @property
    def aid(self) -> tuple[type, ...]:
        """Ground truth for ``oracle``, clean samples for the indicators that score models."""
        if self.indicator == "oracle":
            return (Oracle,)
        return (ServerSamples,) if self.indicator in RECORDS else ()

    def _now(self, clock: Clock) -> bool:
        return clock.stage == self.stage and clock.last_of_stage

    def wants_models(self, clock: Clock) -> Wants:
        """In the last round of the stage; in all its rounds if models are scored; never for ``confidence``."""
        if self.indicator in RECORDS:
            return "after" if clock.stage == self.stage else "no"
        return "after" if self.indicator != "confidence" and self._now(clock) else "no"

    def gathered(self, state: QualityState, gathered: Gathered) -> QualityState:
        """Score the clients' models; in the last round of the stage, estimate their label quality."""
        if gathered.combined is None or self.wants_models(gathered.broadcast.clock) == "no":
            return state
        if state.record is not None:
            state = replace(state, record=self.benchmark.after(state.record, gathered))
        if not self._now(gathered.broadcast.clock):
            return state
        clients = [r.client for r in gathered.results]
        steps = torch.full_like(state.steps, torch.nan)
        steps[clients] = torch.tensor([r.steps for r in gathered.results], dtype=torch.float64)
        return self._scaled(replace(state, steps=steps), self._indicators(state, gathered, clients))

    def _indicators(self, state: QualityState, gathered: Gathered, clients: Sequence[int]) -> Mapping[int, float]:
        if self.indicator == "oracle":
            true = gathered.aid.one(Oracle).quality
            return {client: true[client] for client in clients}
        if state.record is None:
            return self._distances(gathered)
        if isinstance(state.record, Relevance):
            return {client: float(state.record.phi[client]) for client in clients}
        drops, trained = state.record.mean, state.record.trained
        return {client: float(drops[client]) for client in clients if trained[client]}

    def _distances(self, gathered: Gathered) -> dict[int, float]:
        """Each client's distance from the combined model; flattens one client's model at a time to save memory."""
        received, results = _trained(gathered, self.scope), gathered.results
        taken = {r.client: max(r.steps, 1) if self.norm == "per_step" else 1 for r in results}
        mean = sum(r.num_samples * taken[r.client] for r in results) / sum(r.num_samples for r in results)
        assert gathered.combined is not None, "there is a combined model"
        of_server = self._of(received, gathered.combined.params, mean)
        subset = shared_subset(len(of_server), stream(0, "criticality subset")) if self.emd == "subset" else None
        whole, middle = profile(of_server, how=self.emd, subset=subset), sign_statistic(of_server, self.sign)
        distances = {}
        for r in results:
            assert r.params is not None, "the exchange has requested the models"
            g = self._of(received, r.params, taken[r.client])
            if self.indicator == "mean":
                distances[r.client] = sign_statistic(g)
                continue
            distance = emd(profile(g, how=self.emd, subset=subset), whole)
            if self.indicator == "emd_sign":
                distance = signed(distance, sign_statistic(g, self.sign), middle, self.sign)
            distances[r.client] = distance
        return distances

    def _of(self, received: Params, trained: Params, steps: float) -> Tensor:
        return flattened(received, trained, scope=self.scope, steps=steps).cpu()

    def _scaled(self, state: QualityState, indicators: Mapping[int, float]) -> QualityState:
        usable = {client: d for client, d in indicators.items() if math.isfinite(d)}
        if not usable:
            return state
        clients, d = list(usable), np.array(list(usable.values()))
        rho = np.maximum(self._rho(d), self.floor)
        value = torch.full_like(state.rho, float(rho.mean()))
        value[clients] = torch.from_numpy(rho)
        indicator, assessed = torch.full_like(state.indicator, torch.nan), torch.zeros_like(state.assessed)
        indicator[clients], assessed[clients] = torch.from_numpy(d), True
        return replace(state, rho=value, indicator=indicator, assessed=assessed)

    def _rho(self, d: NDArray[np.float64]) -> NDArray[np.float64]:
        if self.indicator == "confidence":
            return quality_of_confidence(d)
        if self.indicator == "sfedavg_phi":
            return quality_of_relevance(d, temperature=self.benchmark.temperature)
        return d if self.indicator == "oracle" else quality(d)

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """In the round of comparison: keep the trained entries' ranks; under ``confidence``, report unsure samples."""
        if not self._now(task.broadcast.clock):
            return Payload(), Payload()
        trained, found = network.trainable(), criticalities(task.broadcast.params, fit.params, scope=self.scope)
        place = ranks({name: g for name, g in found if name in trained})
        up = Payload()
        if self.indicator == "confidence":
            up = Payload(UnsureShare(unsure_share(network.logits(task.samples), self.confidence)))
        return up, Payload(CriticalityRanks(place))

    def receive(self, state: QualityState, reports: Mapping[int, Payload], seed: int) -> QualityState:
        """Estimate quality from the reported shares of unsure samples, if there are any."""
        shares = {c: r.one(UnsureShare).value for c, r in reports.items() if r.get(UnsureShare) is not None}
        return self._scaled(state, shares) if shares else state

    def send(self, state: QualityState, client: int, clock: Clock) -> tuple[Any, ...]:
        """ρ of this client, once it is known."""
        return (ClientQuality(float(state.rho[client])),) if state.known else ()

    def known(self, state: QualityState) -> tuple[Any, ...]:
        """ρ of all clients."""
        return (ClientQualities(state.rho),)

    def findings(self, state: QualityState, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """ρ with its basis, once known, and the number of clients with a negative sign (usually close to 0)."""
        if not state.known:
            return ()
        estimate = EstimatedQuality(state.rho, {"indicator": state.indicator, "steps": state.steps})
        return estimate, Scalar("negative_signs", float((state.indicator < 0).sum()))


def _trained(gathered: Gathered, scope: Scope) -> Params:
    """What is compared of the received model, without what no client has changed, such as frozen weights.

    If clients have changed none of it, as of a network whose units are all dead, it is all of it, of criticality 0.
    """
    received = compared(gathered.broadcast.params, scope)
    sent = [r.params for r in gathered.results if r.params is not None]
    moved = {n: before for n, before in received.items() if any(not torch.equal(one[n], before) for one in sent)}
    return moved or received
