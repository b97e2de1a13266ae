"""What runs that are missing may cost, from those that have been measured."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from src.tables.identity import Identity
from src.tables.plan import Plan, Wanted


@dataclass(frozen=True)
class Estimate:
    """Seconds of work of the missing runs one after the other, and how well that is known."""

    seconds: float
    gpu_seconds: float
    guessed: int  # runs of a method that has not been measured in this setting
    measured: int  # runs behind the numbers


def estimate(plan: Plan) -> Estimate | None:
    """From the rounds that runs of this plan have measured; None where there are none.

    A run takes what a local training took in the runs nearest to it (their median): of its method, data set and
    network; else of its data set and network; else of all. What it has behind it counts.
    """
    paces: dict[tuple[str, ...], list[float]] = defaultdict(list)
    on_gpu = 0
    for key, record in plan.records.items():
        seconds, done = record.get("wall_time_s") or 0.0, record.get("participations") or 0
        if done:
            on_gpu += "cuda" in str(record.get("device"))
            for kind in _kinds(plan.runs[key].identity):
                paces[kind].append(seconds / done)
    if not paces:
        return None
    total, guessed = 0.0, 0
    for run in plan.missing:
        kinds = _kinds(run.identity)
        nearest = next(kind for kind in kinds if kind in paces)
        guessed += nearest != kinds[0]
        total += median(paces[nearest]) * _left(plan, run)
    measured = len(paces[()])
    return Estimate(total, total * on_gpu / measured, guessed, measured)


def _kinds(run: Identity) -> list[tuple[str, ...]]:
    """From what is most like the run to everything."""
    return [(run.method, run.dataset, run.model), (run.dataset, run.model), ()]


def _left(plan: Plan, run: Wanted) -> int:
    done = plan.records.get(run.identity.key, {}).get("participations") or 0
    return max(0, run.identity.trainings - done)
