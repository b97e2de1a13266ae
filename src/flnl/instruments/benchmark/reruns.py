"""Runs of entries that were made again: whether their numbers are the same elsewhere, and how long they take."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, field
from functools import cached_property
from os import SEEK_END
from pathlib import Path
from statistics import fmean
from typing import Annotated

from pydantic import ConfigDict, Field, TypeAdapter
from pydantic.dataclasses import dataclass

from flnl.core.errors import UserError
from flnl.core.special import refuse_special
from flnl.record.trace import Trace
from flnl.storage.input_file import parse_json

FILE = "reruns.jsonl"

Run = tuple[str, str, int]
"""Entry, task and seed."""
Program = tuple[str | None, str | None]
"""Machine and commit: times are compared where both are the same."""


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
    cpu_time_s: Annotated[float, Field(gt=0)] | None

    @property
    def run(self) -> Run:
        """Which one it is."""
        return self.entry, self.task, self.seed

    @property
    def program(self) -> Program:
        """What made it."""
        return self.machine, self.commit

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

    values: Sequence[Rerun] = field(default_factory=list)

    @classmethod
    def load(cls, folder: Path) -> Reruns:
        """Those kept in a version's folder, the last of one run by one program; none if there is no file.

        Raises:
            UserError: if the file is damaged.
        """
        file, rows = folder / FILE, dict[tuple[Run, Program], Rerun]()
        try:
            refuse_special(file)
            lines = file.read_bytes().splitlines()
        except FileNotFoundError:
            return cls()
        except OSError as error:
            raise UserError(f"{file}: {error.strerror or error}") from None
        for place, line in enumerate(lines, 1):
            try:
                row = _ROW.validate_python(parse_json(line))
            except ValueError as error:
                raise UserError(f"{file}, line {place}, is damaged ({str(error).splitlines()[0]}): delete it") from None
            rows.pop((row.run, row.program), None)  # it is the last one now
            rows[row.run, row.program] = row
        return cls([*rows.values()])

    @classmethod
    def add(cls, folder: Path, new: Rerun) -> None:
        """Keep one more, in place of the same run's by the same program. Several processes may do so at a time.

        Raises:
            OSError: if it cannot be written.
        """
        with (folder / FILE).open("ab+") as file:
            if file.tell():
                file.seek(-1, SEEK_END)
                if file.read() != b"\n":  # an editor's last line
                    file.write(b"\n")
            file.write(f"{json.dumps(asdict(new))}\n".encode())

    def of(self, run: Run, program: Program) -> Rerun | None:
        """What came out when a program made a run again; None if it has not."""
        return next((row for row in self.values if (row.run, row.program) == (run, program)), None)

    def time(self, entry: str, base: str, tasks: Collection[str]) -> float | None:
        """Processor seconds of an entry beside those of ``base``, mean over ``tasks``, of each over common seeds.

        None if no program has made a seed of both again in each of them; the last one that has counts.
        """
        found = None
        for seconds in self._seconds.values():
            ratios: dict[str, list[float]] = {}
            for (name, task, seed), own in seconds.items():
                if name == entry and task in tasks and (base, task, seed) in seconds:
                    ratios.setdefault(task, []).append(own / seconds[base, task, seed])
            if ratios and len(ratios) == len(tasks):
                found = fmean(fmean(of_task) for of_task in ratios.values())
        return found

    @cached_property
    def _seconds(self) -> dict[Program, dict[Run, float]]:
        """By program and run."""
        found: dict[Program, dict[Run, float]] = {}
        for row in self.values:
            if row.cpu_time_s is not None:
                found.setdefault(row.program, {})[row.run] = row.cpu_time_s
        return found

    def by_processor(
        self, entries: Collection[str], tasks: Collection[str]
    ) -> Mapping[tuple[str, str], Sequence[Rerun]]:
        """Those of ``entries`` in ``tasks``, by the names of the processors on which they were made first and again."""
        found: dict[tuple[str, str], list[Rerun]] = {}
        for row in self.values:
            if row.entry in entries and row.task in tasks:
                found.setdefault((_processor(row.first_machine), _processor(row.machine)), []).append(row)
        return found


def _processor(machine: str | None) -> str:
    """Its name in a record's machine, which is that of system, processor and instruction set."""
    parts = (machine or "").split(", ")
    return parts[1] if len(parts) > 1 else "not recorded"


_ROW = TypeAdapter(Rerun)
