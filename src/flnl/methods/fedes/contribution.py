"""What clients' models are worth on clean samples that the server holds (S-FedAvg, FAIR)."""

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
"""What a coalition of clients is worth, the empty one included."""

ENUMERATED = 6
"""Up to so many players every coalition is looked at."""


def shapley(
    players: Collection[int],
    value: Value,
    rng: np.random.Generator,
    *,
    permutations: PositiveCount,
    tolerance: NonNegative,
) -> dict[int, float]:
    """Shapley values ``s_k``: the mean over orders of what k adds to those before it (Game of Gradients, Sec. 4).

    Exact up to ``ENUMERATED`` players. Of more, the mean over ``permutations`` random orders, each left, with nothing
    for those that are still to come, once the prefix is worth all players to within ``tolerance``. The values sum to
    ``value(all) - value({})``, up to ``tolerance`` where orders are left early.
    """
    known: dict[frozenset[int], float] = {}

    def worth(coalition: frozenset[int]) -> float:
        if coalition not in known:
            known[coalition] = value(coalition)
        return known[coalition]

    everybody = sorted(players)
    if len(everybody) <= ENUMERATED:
        return {k: _exact(k, everybody, worth) for k in everybody}
    whole, total = worth(frozenset(everybody)), dict.fromkeys(everybody, 0.0)
    for _ in range(permutations):
        prefix = frozenset[int]()
        for k in rng.permutation(everybody).tolist():
            if abs(whole - worth(prefix)) < tolerance:
                break
            total[k] += worth(prefix | {k}) - worth(prefix)
            prefix |= {k}
    return {k: added / permutations for k, added in total.items()}


def _exact(player: int, everybody: Collection[int], worth: Value) -> float:
    others = [k for k in everybody if k != player]
    found = 0.0
    for size in range(len(others) + 1):
        share = 1 / (len(everybody) * comb(len(others), size))
        found += share * sum(
            worth(frozenset({*chosen, player})) - worth(frozenset(chosen)) for chosen in combinations(others, size)
        )
    return found


@stored("Relevance")
@dataclass(frozen=True)
class Relevance:
    """S-FedAvg's φ float64 [N], which starts at 1/N."""

    phi: Tensor

    @classmethod
    def of(cls, clients: int) -> Self:
        """Nobody has been seen."""
        return cls(torch.full((clients,), 1 / max(clients, 1), dtype=torch.float64))

    def after(self, values: Mapping[int, float], *, keep: Share, gain: NonNegative) -> Self:
        """``φ_k ← α φ_k + β s_k`` of those in ``values`` alone, with α = ``keep`` and β = ``gain``."""
        phi = self.phi.clone()
        for k, value in values.items():
            phi[k] = keep * phi[k] + gain * value
        return type(self)(phi)


@stored("Drops")
@dataclass(frozen=True)
class Drops:
    """FAIR's record of how far each client's training lowered a loss: sums that forget, float64 [N] each."""

    total: Tensor  # Σ_r ρ^(t-r) q_r over the rounds r in which the client trained
    weight: Tensor  # Σ_r ρ^(t-r)

    @classmethod
    def of(cls, clients: int) -> Self:
        """Nobody has been seen."""
        none = torch.zeros(clients, dtype=torch.float64)
        return cls(none, none)

    def after(self, values: Mapping[int, float], *, memory: Share) -> Self:
        """The record one round on, in which the clients in ``values`` trained; ``memory`` is ρ."""
        total, weight = memory * self.total, memory * self.weight
        for k, value in values.items():
            total[k] += value
            weight[k] += 1
        return type(self)(total, weight)

    @property
    def mean(self) -> NDArray[np.float64]:
        """``q̂ = Σ_r ρ^(t-r) q_r / Σ_r ρ^(t-r)`` [N]; 0 of a client that never trained."""
        return np.asarray((self.total / self.weight.where(self.weight > 0, 1)).numpy(), np.float64)


RECORDS: Mapping[str, Callable[[int], Relevance | Drops]] = {"sfedavg_phi": Relevance.of, "fair_qhat": Drops.of}
"""By indicator of quality, what is kept of so many clients."""


@dataclass(frozen=True)
class OnBenchmark:
    """How a record of clients is kept round by round, from scores of their models on the server's clean samples."""

    memory: Share  # FAIR's ρ
    keep: Share  # S-FedAvg's α
    gain: NonNegative  # S-FedAvg's β
    temperature: Positive  # of the softmax over φ
    permutations: PositiveCount
    tolerance: NonNegative  # in accuracy

    def after(self, record: Relevance | Drops, gathered: Gathered) -> Relevance | Drops:
        """The record after a round.

        S-FedAvg's values are accuracies: of the model received for the empty coalition, of the plain mean of its
        members' models for any other. FAIR's ``q_k`` is the cross-entropy of the model received less that of client
        k's: how far its training lowered the loss.
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
        found = shapley(sent, accuracy, rng, permutations=self.permutations, tolerance=self.tolerance)
        return record.after(found, keep=self.keep, gain=self.gain)
