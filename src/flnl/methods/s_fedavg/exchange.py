"""S-FedAvg's relevances of clients, from the accuracy of their models on clean samples that the server holds.

Clients send nothing additional.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from flnl.core.findings import EstimatedQuality, Finding
from flnl.core.messages import ClientState, Clock, Gathered, ServerSamples
from flnl.core.parts import Exchange, Wants
from flnl.core.payload import Params, Payload
from flnl.core.ranges import NonNegative, Positive, PositiveCount, Share
from flnl.numerics.scaling import quality
from flnl.parts.contribution import Relevance, model_shapley, selection_probabilities


@dataclass(frozen=True)
class SelectionScores:
    """Known on the server: φ / T, float64 [N]; clients are selected with probabilities ``softmax(φ / T)``."""

    value: Tensor


@dataclass(frozen=True)
class ShapleyRelevance(Exchange):
    """Relevance φ_k of each client, ``φ_k ← α φ_k + β s_k`` after each round in which it trained; 1/N before.

    s_k is client k's Shapley value among the round's clients. The value of a coalition is the accuracy of the mean of
    its models on the server's clean samples, of the empty one that of the model sent (Game of Gradients, Sec. 4). The
    mean is unweighted, or weighted by samples, as the aggregator's should be. Exact for up to six clients; for more the
    mean over ``permutations`` random orders, each of which ends once less than ``tolerance`` of accuracy is missing.
    """

    knows: ClassVar[tuple[type, ...]] = (SelectionScores,)
    aid: ClassVar[tuple[type, ...]] = (ServerSamples,)
    keep: Share
    gain: NonNegative
    temperature: Positive
    permutations: PositiveCount
    tolerance: NonNegative
    weights: Literal["uniform", "samples"]

    def init(self, clients: int, params: Params) -> Relevance:
        """All clients have relevance 1/N."""
        return Relevance.of(clients)

    def wants_models(self, clock: Clock) -> Wants:
        return "after"

    def gathered(self, state: Relevance, gathered: Gathered) -> Relevance:
        """Score the coalitions of the round's clients, and update their relevances."""
        if gathered.combined is None:
            return state
        values = model_shapley(gathered, permutations=self.permutations, tolerance=self.tolerance, weights=self.weights)
        return state.after(values, keep=self.keep, gain=self.gain)

    def known(self, state: Relevance) -> tuple[Any, ...]:
        """φ / T of all clients."""
        return (SelectionScores(state.phi / self.temperature),)

    def findings(self, state: Relevance, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        """The selection probabilities scaled to [0, 1], as FedES compares them (Table 4), and φ."""
        chances = selection_probabilities(state.phi.numpy(), temperature=self.temperature)
        return (EstimatedQuality(torch.from_numpy(quality(chances)), {"relevance": state.phi}),)
