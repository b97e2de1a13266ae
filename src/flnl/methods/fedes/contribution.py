"""Clients' contributions, measured on clean samples that the server holds (S-FedAvg, FAIR)."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from flnl.core.messages import Benchmark, Gathered
from flnl.core.ranges import NonNegative, Positive, PositiveCount, Share
from flnl.core.stored import stored
from flnl.core.streams import stream
from flnl.numerics.averaging import divided, summed

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


@stored("Relevance")
@dataclass(frozen=True)
class Relevance:
    """S-FedAvg's relevance φ, float64 [N]; initially 1/N."""

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


@stored("Drops")
@dataclass(frozen=True)
class Drops:
    """FAIR's record of the loss reduction by each client's training: discounted sums, float64 [N] each."""

    total: Tensor  # Σ_r ρ^(t-r) q_r over the rounds r in which the client trained
    weight: Tensor  # Σ_r ρ^(t-r)

    @classmethod
    def of(cls, clients: int) -> Self:
        """The initial record of ``clients`` clients."""
        none = torch.zeros(clients, dtype=torch.float64)
        return cls(none, none)

    def after(self, values: Mapping[int, float], *, memory: Share) -> Self:
        """The record after one more round, in which the clients in ``values`` trained; ``memory`` is ρ."""
        total, weight = memory * self.total, memory * self.weight
        for k, value in values.items():
            total[k] += value
            weight[k] += 1
        return type(self)(total, weight)

    @property
    def mean(self) -> NDArray[np.float64]:
        """``q̂ = Σ_r ρ^(t-r) q_r / Σ_r ρ^(t-r)`` [N]; 0 for a client that never trained."""
        return np.asarray((self.total / self.weight.where(self.weight > 0, 1)).numpy(), np.float64)


RECORDS: Mapping[str, Callable[[int], Relevance | Drops]] = {"sfedavg_phi": Relevance.of, "fair_qhat": Drops.of}
"""The initial record for each indicator of quality that needs one."""


@dataclass(frozen=True)
class OnBenchmark:
    """Updates a record of clients each round, from their models' scores on the server's clean samples."""

    memory: Share  # FAIR's ρ
    keep: Share  # S-FedAvg's α
    gain: NonNegative  # S-FedAvg's β
    temperature: Positive  # temperature of the softmax over φ
    permutations: PositiveCount
    tolerance: NonNegative  # tolerance in accuracy for ending an order early

    def after(self, record: Relevance | Drops, gathered: Gathered) -> Relevance | Drops:
        """The record after a round.

        S-FedAvg's values are accuracies: of the received model for the empty coalition, of the unweighted mean of the
        members' models for others. FAIR's ``q_k`` is the cross-entropy of the received model minus that of client k's
        model: the reduction of the loss by its training.
        """
        score, received = gathered.aid.one(Benchmark).score, gathered.broadcast.params
        sent = {r.client: r for r in gathered.results}
        if isinstance(record, Drops):
            before = score(received)[1]
            drops = {k: before - score(r.params)[1] for k, r in sent.items() if r.params is not None}
            return record.after(drops, memory=self.memory)

        def accuracy(coalition: frozenset[int]) -> float:
            members = [sent[k] for k in sorted(coalition)]
            return score(divided(received, [summed(received, members, [1.0] * len(members))]))[0]

        rng = stream(gathered.seed, "coalitions", gathered.broadcast.round)
        values = shapley(sent, accuracy, rng, permutations=self.permutations, tolerance=self.tolerance)
        return record.after(values, keep=self.keep, gain=self.gain)
