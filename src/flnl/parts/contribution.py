"""What clients' models contribute on clean samples that the server holds: Shapley values, reductions of the loss."""

import math
from collections.abc import Callable, Collection, Mapping
from itertools import combinations
from math import comb
from typing import Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.messages import Gathered, ServerSamples
from flnl.core.ranges import NonNegative, Positive, PositiveCount, Share
from flnl.core.stored import stored
from flnl.core.streams import stream
from flnl.numerics.averaging import divided, summed

Array = NDArray[np.float64]

Value = Callable[[frozenset[int]], float]
"""The value of a coalition of clients, which may be empty."""

ENUMERATED = 6
"""Up to this number of players, all coalitions are evaluated."""


def shapley(
    players: Collection[int],
    value: Value,
    rng: np.random.Generator,
    *,
    permutations: PositiveCount,
    tolerance: NonNegative,
) -> dict[int, float]:
    """Shapley values ``s_k``: the mean over orders of k's marginal contribution (Game of Gradients, Sec. 4).

    Exact for up to ``ENUMERATED`` players. For more, the mean over ``permutations`` random orders; an order ends, with
    0 for the remaining players, once the value of its prefix is within ``tolerance`` of that of all players. The
    values sum to ``value(all) - value({})``, up to ``tolerance`` if orders end early.
    """
    known: dict[frozenset[int], float] = {}

    def worth(coalition: frozenset[int]) -> float:
        if coalition not in known:
            known[coalition] = value(coalition)
        return known[coalition]

    everyone = sorted(players)
    if len(everyone) <= ENUMERATED:
        return {k: _exact(k, everyone, worth) for k in everyone}
    whole, total = worth(frozenset(everyone)), dict.fromkeys(everyone, 0.0)
    for _ in range(permutations):
        prefix = frozenset[int]()
        for k in rng.permutation(everyone).tolist():
            if abs(whole - worth(prefix)) < tolerance:
                break
            total[k] += worth(prefix | {k}) - worth(prefix)
            prefix |= {k}
    return {k: added / permutations for k, added in total.items()}


def _exact(player: int, everyone: Collection[int], worth: Value) -> float:
    others = [k for k in everyone if k != player]
    contribution = 0.0
    for size in range(len(others) + 1):
        share = 1 / (len(everyone) * comb(len(others), size))
        contribution += share * sum(
            worth(frozenset({*chosen, player})) - worth(frozenset(chosen)) for chosen in combinations(others, size)
        )
    return contribution


def model_shapley(
    gathered: Gathered,
    *,
    permutations: PositiveCount,
    tolerance: NonNegative,
    weights: Literal["uniform", "samples"] = "uniform",
) -> dict[int, float]:
    """Shapley values of a round's clients, where a coalition's value is the accuracy of its members' mean model.

    Accuracy is measured on the server's clean samples; the empty coalition has the model that the clients received. The
    mean, of buffers too, is unweighted, or weighted by samples. The orders depend on the run's seed and the round only.
    """
    score, received = gathered.aid.one(ServerSamples).score, gathered.broadcast.params
    sent = {r.client: r for r in gathered.results}

    def accuracy(coalition: frozenset[int]) -> float:
        members = [sent[k] for k in sorted(coalition)]
        counts = [float(r.num_samples) if weights == "samples" else 1.0 for r in members]
        return score(divided(received, [summed(received, members, counts)]))[0]

    rng = stream(gathered.seed, "coalitions", gathered.broadcast.round)
    return shapley(sent, accuracy, rng, permutations=permutations, tolerance=tolerance)


def loss_drops(gathered: Gathered) -> dict[int, float]:
    """``L(w_t) - L(w_k)`` for each client of a round, with L the mean cross-entropy on the server's clean samples."""
    score = gathered.aid.one(ServerSamples).score
    before = score(gathered.broadcast.params)[1]
    return {r.client: before - score(r.params)[1] for r in gathered.results if r.params is not None}


def selection_probabilities(phi: Collection[float] | Array, *, temperature: Positive) -> Array:
    """Probabilities ``softmax(φ / T)`` [N] of selecting a client, from relevances φ [N] (S-FedAvg)."""
    scaled = np.asarray(phi, np.float64) / temperature
    odds = np.exp(scaled - scaled.max())
    return np.asarray(odds / odds.sum())


@stored("Relevance")
class Relevance:
    """The relevance φ of clients (S-FedAvg), float64 [N]; initially 1/N."""

    phi: Tensor

    @classmethod
    def of(cls, clients: int) -> Self:
        """The initial record of ``clients`` clients."""
        return cls(torch.full((clients,), 1 / max(clients, 1), dtype=torch.float64))

    def after(self, values: Mapping[int, float], *, keep: Share, gain: NonNegative) -> Self:
        """``φ_k ← α φ_k + β s_k`` for the clients in ``values``, with α = ``keep`` and β = ``gain``."""
        phi = self.phi.clone()
        for k, value in values.items():
            phi[k] = keep * phi[k] + gain * value
        return type(self)(phi)


LEAST_WEIGHT = 1e-100
"""Of a client's past rounds together, beside 1 of a new one: where the weight stops shrinking."""


@stored("Drops")
class Drops:
    """By how much each client's training has reduced the loss (FAIR): discounted sums, float64 [N] each."""

    total: Tensor  # Σ_r ρ^(t-r) q_r over the rounds r in which the client trained
    weight: Tensor  # Σ_r ρ^(t-r)

    @classmethod
    def of(cls, clients: int) -> Self:
        """The initial record of ``clients`` clients."""
        none = torch.zeros(clients, dtype=torch.float64)
        return cls(none, none)

    def after(self, values: Mapping[int, float], *, memory: Share) -> Self:
        """The record after one more round, in which the clients in ``values`` trained; ``memory`` is ρ.

        A client whose value is not finite counts as one that did not train.

        The sums of a client that has long not trained stop shrinking before they vanish; their ratio stays.
        """
        values = {client: value for client, value in values.items() if math.isfinite(value)}
        shrinks = memory * self.weight >= LEAST_WEIGHT
        shrinks[list(values)] = True
        factor = torch.ones_like(self.weight).masked_fill(shrinks, memory)
        total, weight = factor * self.total, factor * self.weight
        for k, value in values.items():
            total[k] += value
            weight[k] += 1
        return type(self)(total, weight)

    @property
    def trained(self) -> Tensor:
        """Mask [N] of the clients that have trained."""
        return self.weight > 0

    @property
    def mean(self) -> Array:
        """``q̂ = Σ_r ρ^(t-r) q_r / Σ_r ρ^(t-r)`` [N]; 0 for a client that never trained."""
        return np.asarray((self.total / self.weight.where(self.weight > 0, 1)).numpy(), np.float64)
