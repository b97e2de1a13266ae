"""What a run is going to do, known before its first round: local epochs, and when its model is evaluated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flnl.core.method import Method
from flnl.core.training import Training


def epochs(method: Method, training: Training, sizes: Sequence[int]) -> list[float]:
    """Local epochs of every round, over its whole cohort: how its time compares with another's.

    Args:
        method: its stages may train differently.
        training: how the run trains.
        sizes: numbers of samples of the clients that hold data; a cohort is taken to have clients of mean size.
    """
    mean = sum(sizes) / len(sizes)
    found: list[float] = []
    for stage in method.stages:
        own = stage.training(training)
        each = own.epochs if own.steps is None else own.steps * min(own.batch_size, mean) / mean
        found += [float(stage.size(len(sizes)) * each)] * stage.length(len(sizes))
    return found


@dataclass(frozen=True)
class Evaluations:
    """When a run evaluates its model: after so many participations, and at the end of each stage."""

    every: int  # participations; at most one evaluation a round

    @classmethod
    def of(cls, method: Method, clients: int, every: int | None) -> Evaluations:
        """As ``eval.every`` says, with ``clients`` clients; None is one cohort of the last stage."""
        return cls(every or method.stages[-1].size(clients))

    def due(self, before: int, after: int, *, last_of_stage: bool) -> bool:
        """Whether to evaluate after a round; ``before`` and ``after`` are the participations before and after it."""
        return last_of_stage or after // self.every > before // self.every

    def planned(self, method: Method, clients: int) -> dict[int, int]:
        """The rounds, from 1, after which the model will be evaluated, with the participations by then.

        Cohorts are taken to be as large as they may be.
        """
        found: dict[int, int] = {}
        number = participations = 0
        for stage in method.stages:
            length, cohort = stage.length(clients), stage.size(clients)
            for stage_round in range(length):
                before, number, participations = participations, number + 1, participations + cohort
                if self.due(before, participations, last_of_stage=stage_round + 1 == length):
                    found[number] = participations
        return found
