"""Clients' contributions as indicators of their quality, measured on the server's clean samples (S-FedAvg, FAIR)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flnl.core.messages import Gathered
from flnl.core.ranges import NonNegative, Positive, PositiveCount, Share
from flnl.parts.contribution import Drops, Relevance, loss_drops, model_shapley

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
        """The record after a round: of losses under FAIR, of accuracies under S-FedAvg."""
        if isinstance(record, Drops):
            return record.after(loss_drops(gathered), memory=self.memory)
        values = model_shapley(gathered, permutations=self.permutations, tolerance=self.tolerance)
        return record.after(values, keep=self.keep, gain=self.gain)
