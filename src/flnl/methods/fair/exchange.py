"""FAIR's learning quality of clients: how much their training reduces a loss.

By default the server measures the loss on clean samples that it holds, and clients send nothing additional.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flnl.core.findings import EstimatedQuality, Finding
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, Gathered, ServerSamples
from flnl.core.model import Model
from flnl.core.parts import Exchange, Wants
from flnl.core.payload import Params, Payload
from flnl.core.ranges import Share
from flnl.core.stored import stored
from flnl.numerics.losses import sample_losses
from flnl.numerics.scaling import quality
from flnl.parts.contribution import Drops, loss_drops


@stored("LocalDrop")
class LocalDrop:
    """Sent to the server under ``loss_on=local``: the reduction of the mean loss on the client's samples."""

    value: float


@dataclass(frozen=True)
class QualityEstimates:
    """Known on the server: the estimated learning quality of each client."""

    value: Tensor  # float64 [N], q̂; -inf for a client without an estimate
    sized: bool  # whether the number of samples is a factor of q̂


@stored("LearningQualityState")
class LearningQualityState:
    """The server's state."""

    drops: Drops
    failed: Tensor  # bool [N], clients whose last model had no finite loss


@dataclass(frozen=True)
class LearningQuality(Exchange):
    """Estimated learning quality q̂_k of each client (Deng et al. 2021, in the reading of FedES).

    After a round, ``q_k = L(w_t) - L(w_k)`` with w_t the model sent and w_k the client's, and L the mean cross-entropy.
    Under ``loss_on=benchmark``, it is measured on the server's clean samples. Under ``local``, as in FAIR, each client
    measures it on its own samples and labels, and q_k is this times its number of samples. The estimate is a mean over
    the rounds r in which the client trained, ``q̂_k = Σ_r ρ^(t-r) q_k^r / Σ_r ρ^(t-r)`` with ρ = ``memory``; it includes
    the present round when the models are combined. A client whose model has no finite loss has no estimate until its
    next training.
    """

    reports: ClassVar[tuple[type, ...]] = (LocalDrop,)
    knows: ClassVar[tuple[type, ...]] = (QualityEstimates,)
    loss_on: Literal["benchmark", "local"]
    memory: Share

    @property
    def aid(self) -> tuple[type, ...]:
        return (ServerSamples,) if self.loss_on == "benchmark" else ()

    def init(self, clients: int, params: Params) -> LearningQualityState:
        return LearningQualityState(Drops.of(clients), torch.zeros(clients, dtype=torch.bool))

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """Under ``loss_on=local``, the reduction of the loss on the client's samples, in eval mode."""
        if self.loss_on != "local":
            return Payload(), Payload()
        before = sample_losses(network.received(task), task.labels).mean()
        after = sample_losses(network.logits(task.samples), task.labels).mean()
        return Payload(LocalDrop(float(before - after))), Payload()

    def wants_models(self, clock: Clock) -> Wants:
        """In every round: the estimates weight the models."""
        return "before"

    def gathered(self, state: LearningQualityState, gathered: Gathered) -> LearningQualityState:
        """Measure the quality of this round's models, and update the estimates."""
        if self.loss_on == "benchmark":
            drops = loss_drops(gathered)
        else:
            drops = {r.client: r.num_samples * r.reports.one(LocalDrop).value for r in gathered.results}
        failed = state.failed.clone()
        failed[list(drops)] = torch.tensor([not math.isfinite(drop) for drop in drops.values()])
        return LearningQualityState(state.drops.after(drops, memory=self.memory), failed)

    def known(self, state: LearningQualityState) -> tuple[Any, ...]:
        """q̂ of all clients."""
        estimates = torch.from_numpy(state.drops.mean).where(_estimated(state), -torch.inf)
        return (QualityEstimates(estimates, sized=self.loss_on == "local"),)

    def findings(
        self, state: LearningQualityState, clients: Mapping[int, ClientState], known: Payload
    ) -> tuple[Finding, ...]:
        """q̂ scaled to [0, 1], once there are estimates; a client without one has the mean of the others."""
        estimated = _estimated(state)
        if not bool(estimated.any()):
            return ()
        scaled = torch.from_numpy(quality(state.drops.mean[estimated.numpy()]))
        values = torch.full_like(state.drops.total, float(scaled.mean()))
        values[estimated] = scaled
        raw = torch.from_numpy(state.drops.mean).where(estimated, torch.nan)
        return (EstimatedQuality(values, {"learning_quality": raw}),)


def _estimated(state: LearningQualityState) -> Tensor:
    """Mask [N] of the clients with an estimate."""
    return state.drops.trained & ~state.failed
