"""What runs that are missing may cost, from those that have been measured.

What a run costs is counted in passes over the training data: its local trainings, their epochs, and the share of the
data that a client holds on average. What a pass costs is known for a data set in its size and a network with its
arguments alone; from one of them to another nothing is concluded, nor from one kind of device to another.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from flnl.tables.identity import Identity
from flnl.tables.plan import Plan, Wanted

Kind = tuple[str | int, ...]


@dataclass(frozen=True)
class Estimate:
    """Seconds of work of missing runs one after the other on one kind of device, and how well that is known."""

    seconds: float
    runs: int  # missing runs that it is of
    guessed: int  # of these, runs of a method or batch size that has not been measured in this setting
    unknown: int  # missing runs of a data set or network that has not been measured: no part of it
    measured: int  # runs that were measured on such a device


def estimate(plan: Plan, *, gpu: bool) -> Estimate:
    """From the rounds that runs of this plan have measured on a GPU, or on a CPU.

    A pass takes what it took in the runs nearest to this one (their median): of its method, data set, network and batch
    size; else of other methods; else of other batch sizes, too. What a run has behind it counts.
    """
    paces: dict[Kind, list[float]] = defaultdict(list)
    measured = 0
    for key, record in plan.records.items():
        seconds, done = record.get("wall_time_s") or 0.0, record.get("participations") or 0
        if seconds and done and ("cuda" in str(record.get("device"))) == gpu:
            measured += 1
            identity = plan.runs[key].identity
            for kind in _kinds(identity):
                paces[kind].append(seconds / identity.passes(done))
    total, runs, guessed, unknown = 0.0, 0, 0, 0
    for run in plan.missing:
        kinds = _kinds(run.identity)
        nearest = next((kind for kind in kinds if kind in paces), None)
        if nearest is None:
            unknown += 1
            continue
        runs += 1
        guessed += nearest != kinds[0]
        total += median(paces[nearest]) * run.identity.passes(_left(plan, run))
    return Estimate(total, runs, guessed, unknown, measured)


def _kinds(run: Identity) -> list[Kind]:
    """From what is most like the run to all that says something of it."""
    setting = (run.dataset, run.model)
    return [(run.method, *setting, run.batch), (*setting, run.batch), setting]


def _left(plan: Plan, run: Wanted) -> int:
    done = plan.records.get(run.identity.key, {}).get("participations") or 0
    return max(0, run.identity.trainings - done)
