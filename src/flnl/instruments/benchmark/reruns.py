"""Runs of entries that were made again: whether their numbers are the same elsewhere, and how long they take."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter
from pydantic.dataclasses import dataclass

from flnl.core.errors import UserError
from flnl.numerics import moments
from flnl.record.trace import Trace
from flnl.storage.input_file import parse_json

FILE = "reruns.jsonl"

Run = tuple[str, str, int]
"""Entry, task and seed."""


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Rerun:
    """A run of an entry, made again on a machine. What it was made on first is None where it was not recorded."""

    entry: str
    task: str
    seed: int
    numbers: int  # that the entry's run has
    different: Mapping[str, tuple[float, float | None]]  # of them, then and now, by name
    first_machine: str | None
    machine: str | None
    torch: str | None
    commit: str | None
    cpu_time_s: float | None

    @property
    def run(self) -> Run:
        """Which one it is."""
        return self.entry, self.task, self.seed

    @classmethod
    def of(cls, run: Run, first: Trace, now: Trace) -> Rerun:
        """The comparison of a run with the one made again."""
        different = {
            name: (v, now.metrics.get(name)) for name, v in first.metrics.items() if now.metrics.get(name) != v
        }
        here = now.origins[-1]
        seconds = now.costs.get("cpu_time_s")
        machines = first.origins[-1].machine if first.origins else None, here.machine
        return cls(*run, len(first.metrics), different, *machines, here.torch, here.commit, seconds)


@dataclass(frozen=True)
class Reruns:
    """All that are kept with a version's entries, in the order in which they were made."""

    values: Sequence[Rerun] = ()

    @classmethod
    def load(cls, folder: Path) -> Reruns:
        """Those kept in a version's folder, of one run on one machine the last; none if there is no file.

        Raises:
            UserError: if the file is damaged.
        """
        file = folder / FILE
        try:
            text = file.read_text(encoding="utf-8")
        except FileNotFoundError:
            return cls()
        try:
            rows = _ROWS.validate_python([parse_json(line) for line in text.splitlines()])
            return cls([*{(row.run, row.machine): row for row in rows}.values()])
        except ValueError as error:
            raise UserError(f"{file} is damaged: {str(error).splitlines()[0]}") from None

    @classmethod
    def add(cls, folder: Path, new: Rerun) -> None:
        """Keep one more, in place of the same run's on the same machine. Several processes may do so at a time.

        Raises:
            OSError: if it cannot be written.
        """
        with (folder / FILE).open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(new)) + "\n")

    def has(self, run: Run, machine: str | None) -> bool:
        """Whether a run was made again on a machine."""
        return any((row.run, row.machine) == (run, machine) for row in self.values)

    def time(self, entry: str, base: str, tasks: Iterable[str]) -> float | None:
        """Processor seconds of an entry beside those of ``base`` on one machine, mean over ``tasks``.

        None if no machine has made the same seed of both again in all of them; the last one that has counts.
        """
        found, wanted = None, [*tasks]
        for seconds in self._seconds.values():
            ratios = [
                own / seconds[base, task, seed]
                for (name, task, seed), own in seconds.items()
                if name == entry and task in wanted and (base, task, seed) in seconds
            ]
            if wanted and len(ratios) == len(wanted):
                found = moments.mean(ratios)
        return found

    @cached_property
    def _seconds(self) -> dict[str | None, dict[Run, float]]:
        """By machine and run."""
        found: dict[str | None, dict[Run, float]] = {}
        for row in self.values:
            if row.cpu_time_s is not None:
                found.setdefault(row.machine, {})[row.run] = row.cpu_time_s
        return found

    @property
    def by_processor(self) -> Mapping[tuple[str, str], Sequence[Rerun]]:
        """By the names of the processors on which they were made first and again."""
        found: dict[tuple[str, str], list[Rerun]] = {}
        for row in self.values:
            found.setdefault((_processor(row.first_machine), _processor(row.machine)), []).append(row)
        return found


def _processor(machine: str | None) -> str:
    """Its name in a record's machine, which is that of system, processor and instruction set."""
    parts = (machine or "").split(", ")
    return parts[1] if len(parts) > 1 else "not recorded"


_ROWS = TypeAdapter(list[Rerun])
