"""Estimate the cost of missing runs from the times of finished ones.

The cost of a run is counted in passes over the training data: local trainings times epochs times the average share of
the data that a client holds. The time of a pass is measured per method, data set (with its size), network (with its
arguments), batch size and precision, by finished runs of any table at the scale. Methods differ twelvefold in it, so
where the method has not run, what is faster gives a bound. Nothing follows from another data set, network, precision or
kind of device.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from flnl.instruments.tables.identity import Identity
from flnl.instruments.tables.plan import Plan
from flnl.storage.paces import Paces

Kind = tuple[str, str, str, str, int]
"""Method, data set, network, precision, batch size."""


@dataclass(frozen=True)
class Estimate:
    """Estimated time of the missing runs, one after the other, on one kind of device; and what it is based on."""

    seconds: float  # of the runs whose method has been measured with their data set, network and batch size
    runs: int  # their number
    least_seconds: float  # that further runs take at least
    least_runs: int  # their number: another method or batch size, or ``flnl doctor``, has been timed with their network
    unknown: int  # missing runs that have no estimate: their data set or network has not been measured
    measured: int  # finished runs on such a device


def estimate(plan: Plan, *, gpu: bool, doctor: Paces = Paces()) -> Estimate:  # noqa: B008  # immutable
    """Estimate from the runs at this scale that have run on a GPU, or on a CPU, and from what the doctor has timed.

    The time of a pass is the mean over runs of the same method, data set, network, precision and batch size. Of
    a method that has none, it is at least that of the fastest method, or of the doctor's plain SGD, with batches of
    this size or larger. Of an unfinished run, only the remaining passes count.
    """
    spent: dict[Kind, list[float]] = defaultdict(lambda: [0.0, 0.0])  # seconds, passes
    fastest: dict[tuple[str, str, str], list[tuple[int, float]]] = defaultdict(list)  # batch size, seconds of a pass
    for pace in doctor.values:
        if pace.gpu == gpu:
            fastest[pace.dataset, pace.model, pace.precision].append((pace.batch, pace.seconds))
    measured = 0
    for identity, record in plan.begun:
        seconds, done = record.wall_time_s or 0.0, record.participations or 0
        if seconds and done and ((record.device or "cpu") != "cpu") == gpu:
            measured += 1
            spent[_kind(identity)][0] += seconds
            spent[_kind(identity)][1] += identity.passes(done)
    paces = {kind: seconds / passes for kind, (seconds, passes) in spent.items()}
    for kind, seconds in paces.items():
        fastest[kind[1:4]].append((kind[4], seconds))
    sure, least, unknown = [], [], 0
    for run in plan.missing:
        one, begun = run.identity, plan.records.get(run.identity.folder)
        done = (begun.participations or 0) if begun else 0
        kind, passes = _kind(one), one.passes(max(0, one.trainings - done))
        slower = [seconds for batch, seconds in fastest[kind[1:4]] if batch >= one.batch]
        if own := paces.get(kind):
            sure.append(own * passes)
        elif slower:
            least.append(min(slower) * passes)
        else:
            unknown += 1
    return Estimate(sum(sure), len(sure), sum(least), len(least), unknown, measured)


def _kind(run: Identity) -> Kind:
    return run.method, run.dataset, run.model, run.precision, run.batch
