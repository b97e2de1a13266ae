"""Which runs some tables need at a scale, and what there is of them.

A run lives in a folder that its key names, so whatever needs it finds it, and a table costs only what is missing.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any, Literal

from flnl.core.errors import UserError
from flnl.storage.records import SWEEPS
from flnl.tables import metric_values, run_record
from flnl.tables.failed_jobs import fruitless
from flnl.tables.identity import Identities, Identity
from flnl.tables.results import Cell, Filled, Run
from flnl.tables.run_record import Written
from flnl.tables.scaling import Scaling, merged, said
from flnl.tables.table import Column, Number, Row, Table

ROOT = SWEEPS / "tables"
LOGS = ("error.log", "job.log")
RECORDED = ("eval.memorization=true", "eval.cohort=true")
"""Words that change what a run writes down and not its key: where one of its cells has them, the run has."""


@dataclass
class Wanted:
    """A run that cells need."""

    identity: Identity
    seed: int
    words: list[str]  # that make it
    cells: list[str] = field(default_factory=list)  # "fedcorr_2 FedAvg ρ=0.6 τ=0.5"

    def record(self, words: Sequence[str]) -> None:
        """Record also what ``words`` ask for."""
        self.words += [word for word in RECORDED if word in words and word not in self.words]

    @property
    def command(self) -> str:
        """The command line that makes it again."""
        return shlex.join(["python", "-m", "src.main", *self.words])


@dataclass(frozen=True)
class Place:
    """A cell before its runs are looked at: its runs by seed, or why it has none."""

    runs: tuple[Wanted, ...]
    state: Literal["run", "missing", "na"]
    note: str | None


class Plan:
    """Some tables at a scale, with the runs they need and the folder where these are."""

    def __init__(
        self,
        tables: Sequence[Table],
        scaling: Scaling,
        seeds: int | None,
        root: Path = ROOT,
        every: Sequence[Table] = (),
    ) -> None:
        """Find every cell's runs.

        ``every`` are the tables that there are: a run that one of them shares with ``tables`` records what it needs, so
        that the run need not be made again when that table is.

        Raises:
            UserError: if the words of a cell make no run.
        """
        self.tables, self.scaling, self.seeds = tables, scaling, seeds
        self.root, self.folder = root, root / scaling.name
        self.runs: dict[str, Wanted] = {}  # by key, in the order of tables
        self.wrong: list[str] = []  # why tables that were not asked for count for nothing, a line each
        self._read: dict[str, Written | str] = {}  # by key
        identities = Identities(root)
        try:
            self.layouts = [self._layout(table, identities) for table in tables]
            self._record_for([table for table in every if table not in tables], identities)
        finally:
            identities.save()

    # ------------------------------------------------------------------------------------------------------ planning

    def _layout(self, table: Table, identities: Identities) -> list[list[Place]]:
        return [[self._place(table, row, column, identities) for column in table.columns] for row in table.rows]

    def _place(self, table: Table, row: Row, column: Column, identities: Identities) -> Place:
        if row.missing is not None:
            return Place((), "missing", f"there is no {row.missing} yet")
        if column.missing is not None:
            return Place((), "missing", column.missing)
        if (reason := self.scaling.not_available(row, column)) is not None:
            return Place((), "na", reason)
        words = self.scaling.words(row, column)
        label = _label(table, row, column)
        try:
            found = [
                self._wanted(identities.of((*words, f"seed={seed}")), seed, words, label)
                for seed in self.scaling.of(table, self.seeds).seeds
            ]
        except UserError as error:
            raise UserError(f"{label}: {error}") from None
        return Place(tuple(found), "run", None)

    def _wanted(self, identity: Identity, seed: int, words: Sequence[str], label: str) -> Wanted:
        run = self.runs.setdefault(identity.key, Wanted(identity, seed, [*words, f"seed={seed}"]))
        run.record(words)
        run.cells.append(label)
        return run

    def _record_for(self, others: Sequence[Table], identities: Identities) -> None:
        """Let the runs record what cells of ``others`` need of them."""
        for table in others:
            for row, column in product(table.rows, table.columns):
                words = [word for word in said(row, column) if word in RECORDED]
                if not words or row.missing or column.missing or self.scaling.not_available(row, column):
                    continue
                try:
                    self._record(table, row, column, words, identities)
                except UserError as error:
                    self.wrong.append(f"{_label(table, row, column)}: {error}")
                    break

    def _record(self, table: Table, row: Row, column: Column, words: Sequence[str], identities: Identities) -> None:
        for seed in self.scaling.of(table, self.seeds).seeds:
            key = identities.of((*self.scaling.words(row, column), f"seed={seed}")).key
            if key in self.runs:
                self.runs[key].record(words)

    # ------------------------------------------------------------------------------------------------- what there is

    def at(self, run: Wanted) -> Path:
        """The folder of a run."""
        return self.folder / run.identity.folder

    @cached_property
    def records(self) -> Mapping[str, dict[str, Any]]:
        """What is written down of the runs, by key; runs that have not begun have no record."""
        found = {key: run_record.record(self.at(run)) for key, run in self.runs.items()}
        return {key: record for key, record in found.items() if record is not None and record["key"] == key}

    def written(self, run: Wanted) -> Written | str:
        """All that a finished run has written down, or what of it is damaged; read once."""
        if run.identity.key not in self._read:
            try:
                self._read[run.identity.key] = run_record.read(self.at(run))
            except UserError as error:
                self._read[run.identity.key] = str(error)
        return self._read[run.identity.key]

    @cached_property
    def _fruitless(self) -> Mapping[str, str | None]:
        """Folders of jobs that ended, when they were last tried, without having to go on; and why."""
        return fruitless(self.folder)

    def state(self, run: Wanted) -> Literal["finished", "failed", "absent"]:
        """What became of a run; one that was interrupted or killed is absent, and goes on when it is run again."""
        status = self.records.get(run.identity.key, {}).get("status")
        if status == "finished":
            return "finished"
        refused = status is None and run.identity.folder in self._fruitless
        return "failed" if status == "failed" or refused else "absent"

    def _why(self, run: Wanted) -> str | None:
        """What a run failed of, on one line: as its record says, or else the ledger, where it came to no record."""
        if self.state(run) != "failed":
            return None
        said = self.records.get(run.identity.key, {}).get("error") or self._fruitless.get(run.identity.folder)
        return " ".join(str(said).split()) if said else None

    @property
    def missing(self) -> list[Wanted]:
        """The runs that have not finished."""
        return [run for run in self.runs.values() if self.state(run) != "finished"]

    # --------------------------------------------------------------------------------------------------------- cells

    def filled(self) -> list[Filled]:
        """Every table with its runs."""
        return [self._filled(table, layout) for table, layout in zip(self.tables, self.layouts, strict=True)]

    def _filled(self, table: Table, layout: list[list[Place]]) -> Filled:
        groups = list(_alike(table, layout))
        columns = tuple(
            Column(
                merged(table.columns[i].label for i in group),
                table.columns[group[0]].overrides,
                table.columns[group[0]].key,
            )
            for group in groups
        )
        cells = tuple(
            tuple(
                self._cell(table, places[group[0]], table.columns[group[0]], tuple(row[k] for k in group))
                for group in groups
            )
            for places, row in zip(layout, table.cells, strict=True)
        )
        return Filled(table, self.scaling.of(table, self.seeds), columns, tuple(groups), cells, ())

    def _cell(self, table: Table, place: Place, column: Column, papers: tuple[Number | None, ...]) -> Cell:
        if place.state != "run":
            return Cell(papers, (), place.state, place.note)
        runs = tuple(self._run(table, wanted, column) for wanted in place.runs)
        states = [run.state for run in runs]
        if "failed" in states:
            return Cell(papers, runs, "failed", None)
        note = "; ".join(self._lacking(table, column, place, runs)) or None
        if "absent" in states:
            return Cell(papers, runs, "partly" if "finished" in states else "absent", note)
        return Cell(papers, runs, "run", note)

    def _lacking(self, table: Table, column: Column, place: Place, runs: Sequence[Run]) -> dict[str, None]:
        """Why finished runs have no number: each reason once."""
        lacking = [w for w, run in zip(place.runs, runs, strict=True) if run.state == "finished" and run.value is None]
        found = [self.written(run) for run in lacking]
        return {one if isinstance(one, str) else metric_values.without(table.metric, column): None for one in found}

    def _run(self, table: Table, wanted: Wanted, column: Column) -> Run:
        folder, state = self.at(wanted), self.state(wanted)
        number = None
        if state == "finished" and not isinstance(found := self.written(wanted), str):
            number = metric_values.value(found, table.metric, column)
        logs = [folder / name for name in LOGS if (folder / name).exists()]
        log = logs[0] if logs and state == "failed" else None
        return Run(wanted.seed, folder, wanted.command, number, state, log, self._why(wanted))


def _label(table: Table, row: Row, column: Column) -> str:
    return f"{table.name} {row.label} {column.label}"


def _alike(table: Table, layout: list[list[Place]]) -> Iterator[tuple[int, ...]]:
    """Columns by what is run in them: those whose every cell is the same runs, and the same number of them, are one."""
    groups: dict[Any, list[int]] = {}
    for i, column in enumerate(table.columns):
        cells = [row[i] for row in layout]
        runs = tuple(tuple(run.identity.key for run in cell.runs) for cell in cells)
        groups.setdefault((column.key, runs) if any(runs) else i, []).append(i)
    yield from (tuple(group) for group in groups.values())


@dataclass(frozen=True)
class Count:
    """Cells of some tables: all, those that can run, those whose runs have finished, those with a failed run."""

    cells: int
    possible: int
    run: int
    failed: int

    @classmethod
    def of(cls, tables: Sequence[Filled]) -> Count:
        """Over the cells as rendered."""
        states = [cell.state for table in tables for row in table.cells for cell in row]
        possible = sum(state not in ("missing", "na") for state in states)
        return cls(len(states), possible, states.count("run"), states.count("failed"))

    def __str__(self) -> str:
        return f"{self.possible} of {self.cells} cells can run, {self.run} have run, {self.failed} failed"
