"""FedES's first stage: from how a client's parameters moved to how good its labels are.

Nothing more travels up: the server compares the models that it receives anyway. For the one round in which it does so,
it holds the models of all clients of that round.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from src.core import Broadcast, ClientTask, Exchange, Params, Payload
from src.criticality import Distance, Scope, criticalities, emd, flattened, profile, shared_subset
from src.network import Network
from src.quality import SignStatistic, quality, quality_of_confidence, sign_statistic, signed, unsure_share
from src.ranges import PositiveCount, Share
from src.selective_decay import ranks
from src.streams import stream


@dataclass(frozen=True)
class ClientQuality:
    """Sent down once it is known: ρ_n."""

    value: float


@dataclass(frozen=True)
class UnsureShare:
    """Sent up for ``indicator=confidence``: the share of samples that the trained model is unsure of."""

    value: float


@dataclass(frozen=True)
class CriticalityRanks:
    """Kept on the client: the place of each entry among all of them, most critical first; int32, by parameter name."""

    place: Mapping[str, Tensor]


@dataclass(frozen=True)
class ClientQualities:
    """Known on the server: ρ float64 [N], all ones until clients have been compared."""

    value: Tensor


@dataclass(frozen=True)
class QualityState:
    """The server's record, all [N]: ρ, what it was made of, and whom it was made for."""

    rho: Tensor  # float64
    indicator: Tensor  # float64, d_n; NaN of those without a model
    assessed: Tensor  # bool

    @property
    def known(self) -> bool:
        """Whether clients have been compared."""
        return bool(self.assessed.any())


@dataclass(frozen=True)
class Quality(Exchange):
    """Data quality ρ_n of each client, from the last round of stage ``stage`` (FedES, Eqs. 7 to 11).

    With g the criticalities of a client and g_s those of the combined model, ``indicator`` is d_n: ``emd_sign`` is
    ``sgn(μ_n - μ_s) EMD(g_n, g_s)``, ``emd`` the distance, ``mean`` the mean of g_n; ``confidence`` is the released
    program's, from shares of unsure predictions under the client's trained model. ρ is d scaled to [0, 1] over the
    clients, at least ``floor``. A client that has no model in that round gets the mean ρ of the others, and no ranks.

    ``emd`` says how g is compared: all entries sorted, 10 000 quantiles, or 100 000 entries drawn once. Under
    ``norm=per_step`` g is divided by the client's local steps, and g_s by their mean over the clients.
    """

    sends: ClassVar[tuple[type, ...]] = (ClientQuality,)
    keeps: ClassVar[tuple[type, ...]] = (CriticalityRanks,)
    knows: ClassVar[tuple[type, ...]] = (ClientQualities,)
    indicator: Literal["emd_sign", "emd", "mean", "confidence"]
    sign: SignStatistic
    scope: Scope
    emd: Distance
    norm: Literal["none", "per_step"]
    floor: Share
    confidence: Share
    stage: PositiveCount

    def first_stage(self) -> int:
        """The stage after the one in whose last round clients are compared."""
        return self.stage + 1

    def init(self, clients: int) -> QualityState:
        """Nothing is known, and all are good."""
        nan, none = torch.full((clients,), torch.nan, dtype=torch.float64), torch.zeros(clients, dtype=torch.bool)
        return QualityState(torch.ones(clients, dtype=torch.float64), nan, none)

    def _now(self, broadcast: Broadcast) -> bool:
        return broadcast.stage == self.stage and broadcast.last_of_stage

    def wants_models(self, broadcast: Broadcast) -> bool:
        """In the last round of the stage, unless confidence is asked for."""
        return self.indicator != "confidence" and self._now(broadcast)

    def fold_models(
        self,
        state: QualityState,
        received: Params,
        combined: Params,
        models: Mapping[int, Params],
        steps: Mapping[int, int],
    ) -> QualityState:
        """Compare every client with the combined model; one at a time is flattened."""
        taken = {c: max(steps[c], 1) if self.norm == "per_step" else 1 for c in models}
        of_server = self._of(received, combined, sum(taken.values()) / max(len(taken), 1))
        subset = shared_subset(len(of_server), stream(0, "criticality subset")) if self.emd == "subset" else None
        whole, middle = profile(of_server, how=self.emd, subset=subset), sign_statistic(of_server, self.sign)
        found = {}
        for client, model in models.items():
            g = self._of(received, model, taken[client])
            if self.indicator == "mean":
                found[client] = sign_statistic(g)
                continue
            distance = emd(profile(g, how=self.emd, subset=subset), whole)
            signs = self.indicator == "emd_sign"
            found[client] = signed(distance, sign_statistic(g, self.sign), middle, self.sign) if signs else distance
        return self._scaled(state, found)

    def _of(self, received: Params, trained: Params, steps: float) -> Tensor:
        return flattened(received, trained, scope=self.scope, steps=steps).cpu()

    def _scaled(self, state: QualityState, found: Mapping[int, float]) -> QualityState:
        clients, d = list(found), np.array(list(found.values()))
        rho = quality_of_confidence(d) if self.indicator == "confidence" else quality(d)
        rho = np.maximum(rho, self.floor)
        value = torch.full_like(state.rho, float(rho.mean()))
        value[clients] = torch.from_numpy(rho)
        indicator, assessed = torch.full_like(state.indicator, torch.nan), torch.zeros_like(state.assessed)
        indicator[clients], assessed[clients] = torch.from_numpy(d), True
        return QualityState(value, indicator, assessed)

    def report(self, network: Network, task: ClientTask, params: Params) -> tuple[Payload, Payload]:
        """In that round: the ranks that stay, and the share of unsure samples where that is the indicator."""
        if not self._now(task.broadcast):
            return Payload(), Payload()
        place = ranks(dict(criticalities(task.broadcast.params, params, scope=self.scope)))
        up = Payload()
        if self.indicator == "confidence":
            up = Payload(UnsureShare(unsure_share(network.logits(task.samples), self.confidence)))
        return up, Payload(CriticalityRanks(place))

    def fold(self, state: QualityState, reports: Mapping[int, Payload], seed: int) -> QualityState:
        """Shares of unsure samples, where they came."""
        shares = {c: r.one(UnsureShare).value for c, r in reports.items() if r.get(UnsureShare) is not None}
        return self._scaled(state, shares) if shares else state

    def send(self, state: QualityState, client: int) -> tuple[Any, ...]:
        """ρ of this client."""
        return (ClientQuality(float(state.rho[client])),) if state.known else ()

    def known(self, state: QualityState) -> tuple[Any, ...]:
        """ρ of everybody."""
        return (ClientQualities(state.rho),)
