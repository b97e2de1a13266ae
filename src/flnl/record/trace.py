"""What a reader needs to trace a run that a file tells of: what computed it, of which data, and its closing numbers."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from flnl.core.numbers import is_number
from flnl.record.run import RunRecord

ORIGINS, FEDERATIONS = "origins", "federations"
"""The lists of a file to which its runs refer by number, so that each value is written once."""
COSTS = ("participations", "training_passes", "forward_passes", "bytes", "cpu_time_s", "wall_time_s", "peak_memory")
"""What a trace keeps of a record's costs, by their names there; docs/running.md says what each is."""


@dataclass(frozen=True)
class Origin:
    """What computed a run, or a part of it; None where the record does not say."""

    commit: str | None
    machine: str | None
    device: str | None
    executor: Any  # its name and options, as in the record
    torch: str | None  # its version

    @classmethod
    def of(cls, process: RunRecord) -> Origin:
        """That of the last process in a run's record."""
        executor = process.executor or None
        return cls(process.commit, process.machine, process.device, executor, process.versions.get("torch"))


@dataclass(frozen=True)
class Drawn:
    """What a run was trained on: digests (64 hex digits) of the data set, and of who held what by which labels."""

    data: str
    federation: str


@dataclass(frozen=True)
class Trace:
    """Where one run is from."""

    origins: Sequence[Origin]  # different ones, in order: several if the run was resumed elsewhere
    drawn: Drawn
    metrics: Mapping[str, float]  # all of the record that are numbers
    costs: Mapping[str, float] = field(default_factory=dict, compare=False)  # of ``COSTS``; earlier versions kept none
    given: Sequence[str] = ()  # what the method had besides its clients' data: "noise rate", "clean samples"
    key: str = field(default="", compare=False)  # of the run; earlier versions kept none

    @classmethod
    def of(cls, record: RunRecord) -> Trace:
        """That of a finished run."""
        origins: list[Origin] = []
        for origin in map(Origin.of, record.processes):
            if origin not in origins:
                origins.append(origin)
        numbers = {name: value for name, value in record.metrics.items() if is_number(value)}
        costs = {name: value for name in COSTS if (value := getattr(record, name)) is not None}
        given = {"noise rate": record.given, "clean samples": record.clean_samples}
        had = [name for name, value in given.items() if value]
        return cls(origins, Drawn(record.data or "", record.federation or ""), numbers, costs, had, record.run_key)


def compact(text: dict[str, Any]) -> None:
    """Write what the traces in a file of studies share once, and refer to it by number, in place."""
    shared: dict[str, list[Any]] = {ORIGINS: [], FEDERATIONS: []}

    def number(name: str, value: Any) -> int:
        if value not in shared[name]:
            shared[name].append(value)
        return shared[name].index(value)

    for row in _rows(text):
        if not row["traces"]:
            del row["traces"]
            continue
        for seed, trace in row["traces"].items():
            row["traces"][seed] = {
                ORIGINS: [number(ORIGINS, origin) for origin in trace["origins"]],
                "federation": number(FEDERATIONS, trace["drawn"]),
                "metrics": trace["metrics"],
                **{name: trace[name] for name in ("costs", "given", "key") if trace[name]},
            }
    text |= {name: values for name, values in shared.items() if values}


def expanded(text: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of what ``compact`` wrote, with every trace whole.

    Raises:
        LookupError: if a run refers to what the file does not have.
    """
    whole: dict[str, Any] = copy.deepcopy(dict(text))
    for row in _rows(whole):
        for trace in row.get("traces", {}).values():
            trace[ORIGINS] = [whole[ORIGINS][number] for number in trace[ORIGINS]]
            trace["drawn"] = whole[FEDERATIONS][trace.pop("federation")]
    return whole


def _rows(text: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """What has runs: each trial, and the results of each choice."""
    for study in text["studies"]:
        yield from study["trials"]
        if study.get("reported"):
            yield study["reported"]
