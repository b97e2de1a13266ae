"""The runs that entries rest on, as they can be made again: overrides, and the numbers that they must give."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from flnl.instruments.benchmark.definition import Benchmark, Task
from flnl.instruments.benchmark.entries import CEILING, Entry
from flnl.instruments.tune.runs import final
from flnl.record.trace import Trace


@dataclass(frozen=True)
class Claim:
    """One run that a score rests on."""

    entry: str
    task: str
    seed: int
    overrides: Sequence[str]
    trace: Trace

    def __str__(self) -> str:
        return f"{self.entry}, {self.task}, seed {self.seed}"

    def differences(self, metrics: Mapping[str, object]) -> Iterator[str]:
        """Each of its numbers that is another one in ``metrics``, in words."""
        for name, value in self.trace.metrics.items():
            now = metrics.get(name)
            if now != value:
                yield f"{name}: {value!r} then, {now!r} now"


def claims(benchmark: Benchmark, entered: Sequence[Entry], tasks: Sequence[Task]) -> list[Claim]:
    """Every run of these entries in these tasks that is on record; withdrawn entries claim nothing."""
    return [
        claim for entry in entered if entry.withdrawn is None for task in tasks for claim in _of(benchmark, entry, task)
    ]


def drawn(those: Sequence[Claim], word: str) -> Claim:
    """One of them, which the ``word`` draws: the same one wherever the list is the same."""
    return those[int.from_bytes(hashlib.sha256(word.encode()).digest()[:8], "little") % len(those)]


def _of(benchmark: Benchmark, entry: Entry, task: Task) -> Iterator[Claim]:
    study = entry.studies.get(task.ceiling if entry.name == CEILING else task.override)
    if study is None or study.chosen is None or study.reported is None:
        return
    for seed in benchmark.seeds:
        if (trace := study.reported.traces.get(seed)) is not None:
            executor = (trace.origins[-1].executor or {}).get("name", "sequential")
            overrides = [*final(study.overrides, entry.tuned.measure), f"seed={seed}", f"executor={executor}"]
            yield Claim(entry.name, task.name, seed, [*overrides, "reproducible=true"], trace)
