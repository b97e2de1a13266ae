"""Estimate the cost of missing runs from the times of finished ones.

The cost of a run is counted in passes over the training data: local trainings times epochs times the average share of
the data that a client holds. The time of a pass is measured per data set (with its size) and network (with its
arguments). It is never extrapolated to another data set, network or kind of device.
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
    """Estimated time of the missing runs, one after the other, on one kind of device; and what it is based on."""

    seconds: float
    runs: int  # missing runs that the estimate covers
    guessed: int  # of these, runs whose method or batch size has not been measured in this setting
    unknown: int  # missing runs that it does not cover: their data set or network has not been measured
    measured: int  # finished runs on such a device


def estimate(plan: Plan, *, gpu: bool) -> Estimate:
    """Estimate from the runs of this plan that have run on a GPU, or on a CPU.

    The time of a pass is the median over the most similar runs: same method, data set, network and batch size; else
    any method; else any method and batch size. Of an unfinished run, only the remaining passes count.
    """
    paces: dict[Kind, list[float]] = defaultdict(list)
    measured = 0
    for key, record in plan.records.items():
        seconds, done = record.get("wall_time_s") or 0.0, record.get("participations") or 0
        if seconds and done and ((record.get("device") or "cpu") != "cpu") == gpu:
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
    """Groups of comparable runs, from the most similar to the least."""
    setting = (run.dataset, run.model)
    return [(run.method, *setting, run.batch), (*setting, run.batch), setting]


def _left(plan: Plan, run: Wanted) -> int:
    done = plan.records.get(run.identity.key, {}).get("participations") or 0
    return max(0, run.identity.trainings - done)
