"""Ways in alternation, and what their times say: ratios to the floor within a repeat, medians, the spread."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bench.ways import Kind, Running, Way, WayError
from bench.workloads import Job, Workload

TURN_PATIENCE = 30.0
"""A turn may take this many times what the floor took in the same repeat, and at least a minute."""


@dataclass(frozen=True)
class Spread:
    """A median and its range over the repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Of at least one value.

        >>> Spread.of([3.0, 1.0, 2.0])
        Spread(median=2.0, low=1.0, high=3.0)
        """
        return cls(statistics.median(values), min(values), max(values))


def ratios(floor: Sequence[float | None], times: Sequence[float | None]) -> list[float]:
    """How many times as fast as the floor, repeat by repeat; those that either did not finish are left out.

    >>> ratios([2.0, 3.0, None], [1.0, 6.0, 1.0])
    [2.0, 0.5]
    """
    return [f / t for f, t in zip(floor, times, strict=True) if f is not None and t is not None]


@dataclass
class Measured:
    """One way on one workload. A repeat that failed is None, and ``failure`` says why."""

    way: str
    kind: Kind
    seconds: list[float | None] = field(default_factory=list)  # a round, by repeat
    cpu: list[float] = field(default_factory=list)  # CPU seconds a round, of the repeats that were finished
    start: float | None = None  # seconds to the end of the first round, where it was started alone
    peak: int = 0  # bytes of the tree
    processes: int = 1
    accuracy: float | None = None  # after the last round
    detail: str = ""  # what it says of itself
    failure: str | None = None

    @property
    def spread(self) -> Spread | None:
        """Of the seconds a round, None where no repeat was finished."""
        done = [s for s in self.seconds if s is not None]
        return Spread.of(done) if done else None

    def ratio(self, floor: Measured) -> Spread | None:
        """How many times as fast as the floor, None where no repeat was finished by both."""
        found = ratios(floor.seconds, self.seconds)
        return Spread.of(found) if found else None


Tell = Callable[[str], object]


def alternate(
    workload: Workload, job: Path, folder: Path, ways: Mapping[str, Way], repeats: int, together: int, tell: Tell
) -> list[Measured]:
    """Start every way, then let each in turn run its rounds, ``repeats`` times over.

    ``together`` are started at once; where that is one, the time to its first round is kept.
    """
    found = {name: Measured(name, way.kind) for name, way in ways.items()}
    running: dict[str, Running] = {}

    def start(way: Way) -> None:
        try:
            running[way.name] = process = Running(way, job, folder)
            seconds = process.ready()
        except WayError as failure:
            found[way.name].failure = f"{failure}"
            return
        found[way.name].start = seconds if together == 1 else None

    try:
        tell(f"{workload.name}: starting {', '.join(ways)}")
        with ThreadPoolExecutor(together) as pool:
            try:
                list(pool.map(start, ways.values()))
            except BaseException:  # leaving the pool would wait for those that are starting
                pool.shutdown(wait=False, cancel_futures=True)
                for process in running.values():
                    process.close(patience=0.0)
                raise
        for repeat in range(repeats):
            said, floor = [], 0.0
            for name, measured in found.items():
                if measured.failure is not None:
                    measured.seconds.append(None)
                    continue
                patience = max(60.0, TURN_PATIENCE * floor)
                began = time.perf_counter()
                try:
                    seconds, cpu = running[name].turn(workload.turn, patience)
                except WayError as failure:
                    measured.failure = f"repeat {repeat + 1}: {failure}"
                    measured.seconds.append(None)
                    continue
                measured.seconds.append(seconds)
                measured.cpu.append(cpu)
                if measured.kind == "hand":
                    floor = time.perf_counter() - began
                said.append(f"{name} {seconds:.3g}")
            tell(f"{workload.name}: repeat {repeat + 1} of {repeats}, s a round: {', '.join(said)}")
    finally:
        for name, process in running.items():
            found[name].peak, found[name].processes = process.peak, process.processes
            found[name].accuracy = process.about.get("accuracy")
            found[name].detail = str(process.about.get("executor", ""))
            process.close(patience=0.0 if found[name].failure else 15.0)
    for measured in found.values():
        if measured.failure is not None:
            tell(f"{workload.name}: {measured.way} failed: {measured.failure}")
    return list(found.values())


def prepared(workload: Workload, folder: Path) -> Path:
    """The job's file, with the arrays beside it."""
    from bench.workloads import write_arrays

    folder.mkdir(parents=True, exist_ok=True)
    return Job(workload, write_arrays(workload, folder / "arrays.npz")).save(folder / "job.json")
