"""Estimate the cost of missing runs from the times of finished ones.

The cost of a run is counted in passes over the training data: local trainings times epochs times the average share of
the data that a client holds. The time of a pass is measured per data set (with its size) and network (with its
arguments), by finished runs of any table at the scale, or else by ``flnl doctor``. It is never extrapolated to another
data set, network or kind of device.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from statistics import median

from flnl.storage.paces import Paces
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
    timed: int = 0  # of ``runs``, those whose time of a pass is that of ``flnl doctor``


def estimate(plan: Plan, *, gpu: bool, doctor: Paces = Paces()) -> Estimate:  # noqa: B008  # immutable
    """Estimate from the runs at this scale that have run on a GPU, or on a CPU, and from what the doctor has timed.

    The time of a pass is the median over the most similar runs: same method, data set, network and batch size; else
    any method; else any method and batch size; else it is the doctor's for plain SGD with the same batch size, or with
    any. Of an unfinished run, only the remaining passes count.
    """
    timed: dict[Kind, list[float]] = defaultdict(list)
    for pace in doctor.values:
        if pace.gpu == gpu:
            timed[pace.dataset, pace.model, pace.batch].append(pace.seconds)
            timed[pace.dataset, pace.model].append(pace.seconds)
    paces: dict[Kind, list[float]] = defaultdict(list)
    measured = 0
    for identity, record in plan.begun:
        seconds, done = record.get("wall_time_s") or 0.0, record.get("participations") or 0
        if seconds and done and ((record.get("device") or "cpu") != "cpu") == gpu:
            measured += 1
            for kind in _kinds(identity):
                paces[kind].append(seconds / identity.passes(done))
    total, runs, guessed, unknown, by_doctor = 0.0, 0, 0, 0, 0
    for run in plan.missing:
        kinds = _kinds(run.identity)
        nearest = next((kind for kind in kinds if kind in paces), None)
        known = paces
        if nearest is None:
            nearest, known = next((kind for kind in kinds if kind in timed), None), timed
            by_doctor += nearest is not None
        elif nearest != kinds[0]:
            guessed += 1
        if nearest is None:
            unknown += 1
            continue
        runs += 1
        total += median(known[nearest]) * run.identity.passes(_left(plan, run))
    return Estimate(total, runs, guessed, unknown, measured, by_doctor)


def _kinds(run: Identity) -> list[Kind]:
    """Groups of comparable runs, from the most similar to the least."""
    setting = (run.dataset, run.model)
    return [(run.method, *setting, run.batch), (*setting, run.batch), setting]


def _left(plan: Plan, run: Wanted) -> int:
    done = plan.records.get(run.identity.folder, {}).get("participations") or 0
    return max(0, run.identity.trainings - done)
