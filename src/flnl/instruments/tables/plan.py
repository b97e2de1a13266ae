"""The runs that tables need at a scale, and their state on disk.

A run's folder is named after its key, so tables share runs, and only missing runs cost time. Where its data lie is part
of the name if the contents may be others elsewhere.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

from flnl.console.shell import joined
from flnl.core.errors import UserError
from flnl.instruments.tables import metric_values, run_record
from flnl.instruments.tables.added import check_settings
from flnl.instruments.tables.failed_jobs import failed_jobs
from flnl.instruments.tables.identity import Identities, Identity
from flnl.instruments.tables.results import Cell, Filled, Run
from flnl.instruments.tables.run_record import Written
from flnl.instruments.tables.scaling import Scaling, cell_overrides, merged
from flnl.instruments.tables.table import Column, Number, Row, Table
from flnl.record.run import RESULT, SWEEPS, RunRecord
from flnl.sweep.moved import Moved

ROOT = SWEEPS / "tables"
LOGS = ("error.log", "job.log")
RECORDED = ("eval.memorization=true", "eval.cohort=true")
"""Overrides that change what a run records but not its key: a run has them if any of its cells does."""


@dataclass
class Wanted:
    """A run that one or more cells need."""

    identity: Identity
    seed: int
    overrides: list[str]
    cells: list[str] = field(default_factory=list)  # "fedcorr_2 FedAvg ρ=0.6 τ=0.5"

    def record(self, overrides: Sequence[str]) -> None:
        """Add those of ``overrides`` that make the run record more."""
        self.overrides += [one for one in RECORDED if one in overrides and one not in self.overrides]

    @property
    def label(self) -> str:
        """The first cell that needs it, and how many more."""
        others = len(self.cells) - 1
        return f"{self.cells[0]}{f' and {others} more' if others else ''}"

    @property
    def command(self) -> str:
        """The command line that reproduces the run."""
        return joined(["flnl", *self.overrides])


@dataclass(frozen=True)
class Place:
    """A cell before its results are read: its runs, one per seed, or the reason why it has none."""

    runs: tuple[Wanted, ...]
    state: Literal["run", "missing", "na"]
    note: str | None
    same_data: bool = True  # whether the runs have the data set that the table says


def wanted(tables: Sequence[Table], scaling: Scaling, seeds: int | None) -> Iterator[tuple[str, ...]]:
    """The overrides of every run of ``tables``, some of them several times; no configuration is composed for them."""
    for table in tables:
        here = scaling.for_table(table)
        for row, column in product(table.rows, table.columns):
            if here.can_run(row, column):
                overrides = here.resolve(row, column)
                yield from ((*overrides, f"seed={seed}") for seed in here.of(table, seeds).seeds)


class Plan:
    """Tables at a scale, the runs that they need, and the folder of these runs."""

    def __init__(
        self,
        tables: Sequence[Table],
        scaling: Scaling,
        seeds: int | None,
        root: Path = ROOT,
        every: Sequence[Table] = (),
        *,
        starting: bool = False,
    ) -> None:
        """Determine the runs of every cell.

        Without ``seeds``, their number, these are the tables' own, or else the scale's; ``root`` has a folder a
        scale. A run that a table of ``every`` shares with ``tables`` also records what that one needs, so that it need
        not be repeated for it. If runs may be ``starting``, cells of the user's own rows are checked as runs will be.

        Raises:
            UserError: if a cell's overrides are invalid.
        """
        self.tables, self.scaling, self.seeds = tables, scaling, seeds
        self.root, self.folder = root, root / scaling.name
        self._starting = starting
        self.runs: dict[str, Wanted] = {}  # by folder, in the order of tables
        self.wrong: list[str] = []  # faults of what was left out: tables of ``every``, cells of own rows; a line each
        self._read: dict[str, Written | str] = {}  # by folder
        self._unfit: dict[str, list[str]] = {}  # why cells of the user's own rows cannot run, by row
        self._moved = Moved(self.folder)
        identities = Identities(root)
        try:
            identities.prepare(wanted(tables, scaling, seeds))
            self.layouts = [
                [[self._place(table, row, column, identities) for column in table.columns] for row in table.rows]
                for table in tables
            ]
            self._check_own()
            self._record_for([table for table in every if table not in tables], identities)
        finally:
            identities.save()

    # ------------------------------------------------------------------------------------------------------ planning

    def _place(self, table: Table, row: Row, column: Column, identities: Identities) -> Place:
        if row.missing is not None:
            return Place((), "missing", f"there is no {row.missing} yet")
        if column.missing is not None:
            return Place((), "missing", column.missing)
        scaling = self.scaling.for_table(table)
        if (reason := scaling.not_available(row, column)) is not None:
            return Place((), "na", reason)
        overrides = scaling.resolve(row, column)
        label = _label(table, row, column)
        try:
            if row.own:
                check_settings(row, column)
            seeds = scaling.of(table, self.seeds).seeds
            found = {seed: self._identity((*overrides, f"seed={seed}"), identities) for seed in seeds}
            records = (self.folder / identity.folder / RESULT for identity in found.values())
            if row.own and self._starting and not all(file.exists() for file in records):  # else it was right there
                identities.composer.check(overrides)
            runs = [self._wanted(identity, seed, overrides, label) for seed, identity in found.items()]
        except UserError as error:
            if not row.own:
                raise UserError(f"{label}: {error}") from None
            self._unfit.setdefault(row.label, []).append(f"{label}: {error}")
            return Place((), "na", str(error))
        return Place(tuple(runs), "run", None, scaling.keeps_data(row, column))

    def _identity(self, overrides: Sequence[str], identities: Identities) -> Identity:
        """The identity of a run, with the folder of a run of the same data elsewhere if that has begun."""
        identity = identities.of(overrides)
        return replace(identity, folder=self._moved.folder(identity.folder, identity.key, overrides))

    def _check_own(self) -> None:
        """Note the settings in which rows of the user's own cannot run.

        Raises:
            UserError: if one can run in none.
        """
        for label, faults in self._unfit.items():
            cells = (
                place
                for table, layout in zip(self.tables, self.layouts, strict=True)
                for row, places in zip(table.rows, layout, strict=True)
                for place in places
                if row.own and row.label == label
            )
            if not any(place.state == "run" for place in cells):
                raise UserError(faults[0])
            self.wrong += faults

    def _wanted(self, identity: Identity, seed: int, overrides: Sequence[str], label: str) -> Wanted:
        run = self.runs.setdefault(identity.folder, Wanted(identity, seed, [*overrides, f"seed={seed}"]))
        run.record(overrides)
        run.cells.append(label)
        return run

    def _record_for(self, others: Sequence[Table], identities: Identities) -> None:
        """Make the runs also record what cells of ``others`` need."""
        for table in others:
            scaling = self.scaling.for_table(table)
            for row, column in product(table.rows, table.columns):
                recorded = [override for override in cell_overrides(row, column) if override in RECORDED]
                if not recorded or row.own or not scaling.can_run(row, column):
                    continue
                try:
                    for seed in scaling.of(table, self.seeds).seeds:
                        folder = self._identity((*scaling.resolve(row, column), f"seed={seed}"), identities).folder
                        if folder in self.runs:
                            self.runs[folder].record(recorded)
                except UserError as error:
                    self.wrong.append(f"{_label(table, row, column)}: {error}")
                    break

    # --------------------------------------------------------------------------------------------------------- state

    def at(self, run: Wanted) -> Path:
        """The folder of a run."""
        return self.folder / run.identity.folder

    @cached_property
    def records(self) -> Mapping[str, RunRecord]:
        """The records of the runs that have begun, by folder."""
        found = {}
        for folder, run in self.runs.items():
            record, key = run_record.record(self.at(run)), run.identity.key
            if record is not None and key in (record.key, record.run_key):
                found[folder] = record
        return found

    @cached_property
    def begun(self) -> Sequence[tuple[Identity, RunRecord]]:
        """The runs at this scale that have begun, those of other tables too, with their records.

        Runs of other tables are known by the configuration in their records, and left out if it cannot be read.
        """
        begun = [(self.runs[folder].identity, record) for folder, record in self.records.items()]
        own = {run.identity.folder for run in self.runs.values()}
        for file in sorted(self.folder.glob(f"*/{RESULT}")):
            if file.parent.name not in own:
                with suppress(UserError, LookupError, TypeError, ValueError, AttributeError):
                    record = run_record.record(file.parent)
                    if record is not None:
                        begun.append((Identity.of(record.key, record.key[:16], record.config), record))
        return begun

    def written(self, run: Wanted) -> Written | str:
        """The files of a finished run, or an error message if they are damaged; read once."""
        if run.identity.folder not in self._read:
            try:
                self._read[run.identity.folder] = run_record.read(self.at(run))
            except UserError as error:
                self._read[run.identity.folder] = str(error)
        return self._read[run.identity.folder]

    @cached_property
    def _failed_jobs(self) -> Mapping[str, str | None]:
        """Error messages of jobs that failed, by the name of their folder."""
        return failed_jobs(self.folder)

    def state(self, run: Wanted) -> Literal["finished", "failed", "absent"]:
        """The state of a run; one that was interrupted or killed is absent, and continues when it is run again."""
        record = self.records.get(run.identity.folder)
        if record is None:
            return "failed" if run.identity.folder in self._failed_jobs else "absent"
        return "finished" if record.finished else "failed" if record.status == "failed" else "absent"

    def _why(self, run: Wanted) -> str | None:
        """The error of a failed run on one line, from its record, or from the ledger if it has no record."""
        if self.state(run) != "failed":
            return None
        record = self.records.get(run.identity.folder)
        error = record.error if record is not None and record.error else self._failed_jobs.get(run.identity.folder)
        return " ".join(str(error).split()) if error else None

    @property
    def missing(self) -> list[Wanted]:
        """The runs that have not finished."""
        return [run for run in self.runs.values() if self.state(run) != "finished"]

    # --------------------------------------------------------------------------------------------------------- cells

    def filled(self) -> list[Filled]:
        """Every table with the values of its runs."""
        return [self._filled(table, layout) for table, layout in zip(self.tables, self.layouts, strict=True)]

    def _filled(self, table: Table, layout: list[list[Place]]) -> Filled:
        groups = list(_alike(table, layout))
        columns = tuple(
            replace(table.columns[group[0]], label=merged(table.columns[i].label for i in group)) for group in groups
        )
        cells = tuple(
            tuple(
                self._cell(table, [places[k] for k in group], table.columns[group[0]], tuple(row[k] for k in group))
                for group in groups
            )
            for places, row in zip(layout, table.cells, strict=True)
        )
        return Filled(table, self.scaling.for_table(table).of(table, self.seeds), columns, tuple(groups), cells, ())

    def _cell(self, table: Table, merged: Sequence[Place], column: Column, papers: tuple[Number | None, ...]) -> Cell:
        """The cell of the ``merged`` columns, which have the same runs."""
        place, over, same_data = merged[0], table.metric.over, tuple(one.same_data for one in merged)
        if place.state != "run":
            return Cell(papers, (), place.state, place.note, over)
        runs = tuple(self._run(table, wanted, column) for wanted in place.runs)
        states = [run.state for run in runs]
        if "failed" in states:
            return Cell(papers, runs, "failed", None, over, same_data)
        note = "; ".join(self._lacking(table, column, place, runs)) or None
        if "absent" in states:
            return Cell(papers, runs, "partly" if "finished" in states else "absent", note, over, same_data)
        return Cell(papers, runs, "run", note, over, same_data)

    def _lacking(self, table: Table, column: Column, place: Place, runs: Sequence[Run]) -> dict[str, None]:
        """The reasons why finished runs have no value, each once, in order."""
        lacking = [w for w, run in zip(place.runs, runs, strict=True) if run.state == "finished" and run.value is None]
        files = [self.written(run) for run in lacking]
        return {
            one if isinstance(one, str) else metric_values.without(one, table.metric, column): None for one in files
        }

    def _run(self, table: Table, wanted: Wanted, column: Column) -> Run:
        folder, state = self.at(wanted), self.state(wanted)
        number = early = None
        if state == "finished" and not isinstance(written := self.written(wanted), str):
            number = metric_values.value(written, table.metric, column)
            early = metric_values.early(written, table.metric, column)
        logs = [folder / name for name in LOGS if (folder / name).exists()]
        log = logs[0] if logs and state == "failed" else None
        return Run(wanted.seed, folder, wanted.command, number, state, log, self._why(wanted), early)


def _label(table: Table, row: Row, column: Column) -> str:
    return f"{table.name} {row.label} {column.label}"


def _alike(table: Table, layout: list[list[Place]]) -> Iterator[tuple[int, ...]]:
    """Group columns that are the same at this scale: same metric, and the same runs in every cell."""
    groups: dict[Any, list[int]] = {}
    for i, column in enumerate(table.columns):
        cells = [row[i] for row in layout]
        runs = tuple(tuple(run.identity.folder for run in cell.runs) for cell in cells)
        groups.setdefault((column.key, runs) if any(runs) else i, []).append(i)
    yield from (tuple(group) for group in groups.values())


@dataclass(frozen=True)
class Count:
    """Counts of cells by state."""

    cells: int  # all
    possible: int  # those that can run
    run: int  # those whose runs have all finished
    begun: int  # those of which at least one run has finished or failed
    failed: int  # those with a failed run

    @classmethod
    def of(cls, tables: Sequence[Filled]) -> Count:
        """Count the rendered cells of ``tables``."""
        states = [cell.state for table in tables for row in table.cells for cell in row]
        possible = sum(state not in ("missing", "na") for state in states)
        run, partly, failed = (states.count(state) for state in ("run", "partly", "failed"))
        return cls(len(states), possible, run, run + partly + failed, failed)

    def __str__(self) -> str:
        return f"{self.possible} of {self.cells} cells can run, {self.run} have run, {self.failed} failed"
