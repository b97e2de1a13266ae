"""Measure ways in alternation: ratios to the baseline within a repeat, medians and ranges."""

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
"""Timeout of a turn: this many times the baseline's time in the same repeat, but at least a minute."""


@dataclass(frozen=True)
class Spread:
    """A median and its range over the repeats."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Summarise one or more values.

        >>> Spread.of([3.0, 1.0, 2.0])
        Spread(median=2.0, low=1.0, high=3.0)
        """
        return cls(statistics.median(values), min(values), max(values))


def ratios(floor: Sequence[float | None], times: Sequence[float | None]) -> list[float]:
    """Speed relative to the baseline for every repeat that both have finished.

    >>> ratios([2.0, 3.0, None], [1.0, 6.0, 1.0])
    [2.0, 0.5]
    """
    return [f / t for f, t in zip(floor, times, strict=True) if f is not None and t is not None]


@dataclass
class Measured:
    """The measurements of one way on one workload. A failed repeat is None; ``failure`` gives the reason."""

    way: str
    kind: Kind
    seconds: list[float | None] = field(default_factory=list)  # per round, by repeat
    cpu: list[float] = field(default_factory=list)  # CPU seconds per round, of the finished repeats
    start: float | None = None  # seconds to the end of the first round, if it was started alone
    peak: int = 0  # memory of the process tree, in bytes
    processes: int = 1
    accuracy: float | None = None  # after the last round
    detail: str = ""  # the executor that it reports
    failure: str | None = None

    @property
    def spread(self) -> Spread | None:
        """The spread of the seconds per round; None if no repeat has finished."""
        done = [s for s in self.seconds if s is not None]
        return Spread.of(done) if done else None

    def ratio(self, floor: Measured) -> Spread | None:
        """The speed relative to the baseline; None if both have finished no common repeat."""
        values = ratios(floor.seconds, self.seconds)
        return Spread.of(values) if values else None


Tell = Callable[[str], object]


def alternate(
    workload: Workload, job: Path, folder: Path, ways: Mapping[str, Way], repeats: int, together: int, tell: Tell
) -> list[Measured]:
    """Start all ways, then let them run their rounds in turns, ``repeats`` times.

    ``together`` ways are started at a time; if this is 1, the time to their first round is recorded.
    """
    results = {name: Measured(name, way.kind) for name, way in ways.items()}
    running: dict[str, Running] = {}

    def start(way: Way) -> None:
        try:
            running[way.name] = process = Running(way, job, folder)
            seconds = process.ready()
        except WayError as failure:
            results[way.name].failure = f"{failure}"
            return
        results[way.name].start = seconds if together == 1 else None

    try:
        tell(f"{workload.name}: starting {', '.join(ways)}")
        with ThreadPoolExecutor(together) as pool:
            try:
                list(pool.map(start, ways.values()))
            except BaseException:  # otherwise the pool would wait for the ways that are starting
                pool.shutdown(wait=False, cancel_futures=True)
                for process in running.values():
                    process.close(patience=0.0)
                raise
        for repeat in range(repeats):
            times, floor = [], 0.0
            for name, measured in results.items():
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
                times.append(f"{name} {seconds:.3g}")
            tell(f"{workload.name}: repeat {repeat + 1} of {repeats}, s a round: {', '.join(times)}")
    finally:
        for name, process in running.items():
            results[name].peak, results[name].processes = process.peak, process.processes
            results[name].accuracy = process.about.get("accuracy")
            results[name].detail = str(process.about.get("executor", ""))
            process.close(patience=0.0 if results[name].failure else 15.0)
    for measured in results.values():
        if measured.failure is not None:
            tell(f"{workload.name}: {measured.way} failed: {measured.failure}")
    return list(results.values())


def prepared(workload: Workload, folder: Path) -> Path:
    """Write the job's file and its arrays; return the file."""
    from bench.workloads import write_arrays

    folder.mkdir(parents=True, exist_ok=True)
    return Job(workload, write_arrays(workload, folder / "arrays.npz")).save(folder / "job.json")
