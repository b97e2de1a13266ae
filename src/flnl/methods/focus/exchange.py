"""FOCUS's credibility of clients: the server's loss of their models, and theirs of the server's."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from flnl.core.findings import EstimatedQuality, Finding
from flnl.core.messages import ClientState, ClientTask, Clock, Fit, Gathered, ServerSamples
from flnl.core.model import Model
from flnl.core.parts import Exchange, Wants
from flnl.core.payload import Params, Payload
from flnl.core.ranges import Positive
from flnl.core.stored import stored
from flnl.numerics.losses import sample_losses
from flnl.numerics.scaling import quality


@stored("GlobalLoss")
class GlobalLoss:
    """Sent to the server: LL_k, the mean cross-entropy of the global model on the client's samples and labels."""

    value: float


@dataclass(frozen=True)
class Credibilities:
    """Known on the server: C_k of this round's clients, by number."""

    value: Mapping[int, float]


@stored("CredibilityState")
class CredibilityState:
    """The server's state."""

    losses: Tensor  # float64 [N], each client's last E_k; inf without a finite loss, NaN before its first training
    round: Mapping[int, float]  # C_k of the last round's clients


@dataclass(frozen=True)
class Credibility(Exchange):
    """``C_k = 1 - softmax(α E)_k`` over the round's clients, with ``E_k = LS_k + LL_k`` (Chen et al. 2020).

    LS_k is the mean cross-entropy of client k's model on the server's clean samples, LL_k that of the received model on
    the client's samples and labels. A client whose model has no finite loss has C_k = 0.
    """

    reports: ClassVar[tuple[type, ...]] = (GlobalLoss,)
    knows: ClassVar[tuple[type, ...]] = (Credibilities,)
    aid: ClassVar[tuple[type, ...]] = (ServerSamples,)

    alpha: Positive

    def init(self, clients: int, params: Params) -> CredibilityState:
        return CredibilityState(torch.full((clients,), torch.nan, dtype=torch.float64), {})

    def report(self, network: Model, task: ClientTask, fit: Fit) -> tuple[Payload, Payload]:
        """LL_k, in eval mode."""
        return Payload(GlobalLoss(float(sample_losses(network.received(task), task.labels).mean()))), Payload()

    def wants_models(self, clock: Clock) -> Wants:
        """In every round: the credibilities weight the models."""
        return "before"

    def gathered(self, state: CredibilityState, gathered: Gathered) -> CredibilityState:
        """E_k and C_k of this round's clients."""
        score = gathered.aid.one(ServerSamples).score
        found = {}
        for result in gathered.results:
            assert result.params is not None, "the models were asked for"
            found[result.client] = score(result.params)[1] + result.reports.one(GlobalLoss).value
        clients = list(found)
        losses = torch.tensor([found[client] for client in clients], dtype=torch.float64)
        kept = state.losses.clone()
        kept[clients] = losses.where(losses.isfinite(), torch.inf)
        return CredibilityState(kept, dict(zip(clients, credibilities(losses, self.alpha).tolist(), strict=True)))

    def known(self, state: CredibilityState) -> tuple[Any, ...]:
        """C_k of the last round's clients."""
        return (Credibilities(state.round),)

    def findings(
        self, state: CredibilityState, clients: Mapping[int, ClientState], known: Payload
    ) -> tuple[Finding, ...]:
        """-E_k scaled to [0, 1] once clients have trained; a client that has not has the mean of the others.

        One whose model had no finite loss has 0.
        """
        seen = state.losses.isfinite()
        if not bool(seen.any()):
            return ()
        scaled = torch.from_numpy(quality(-state.losses[seen].numpy()))
        values = torch.full_like(state.losses, float(scaled.mean()))
        values[seen] = scaled
        values[state.losses.isposinf()] = 0.0
        return (EstimatedQuality(values, {"mutual_loss": state.losses}),)


def credibilities(losses: Tensor, alpha: float) -> Tensor:
    """``1 - softmax(α E)``, float64 [m]; one client alone has 1, and one without a finite loss 0.

    >>> credibilities(torch.tensor([1.7, 2.2, 5.3], dtype=torch.float64), 1.0)
    tensor([0.9745, 0.9580, 0.0675], dtype=torch.float64)
    """
    finite = losses.isfinite()
    if int(finite.sum()) <= 1:
        return finite.to(losses)
    shares = (alpha * losses.where(finite, -torch.inf)).softmax(0)
    return (1 - shares).where(finite, 0.0)
