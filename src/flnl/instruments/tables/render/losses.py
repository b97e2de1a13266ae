"""What the rendered tables of a folder have that rendering them anew would remove."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flnl.core.errors import UserError
from flnl.instruments.tables import run_record
from flnl.instruments.tables.results import Filled, Run
from flnl.record.run import RESULT
from flnl.storage.input_file import parse_json
from flnl.storage.spreadsheet import text_of


@dataclass(frozen=True)
class Loss:
    """A cell whose results would be lost."""

    cell: str  # "fedcorr_2 FedAvg ρ=0.6 τ=0.5"
    runs: int  # behind the cell in the rendered file
    seeds: int  # that were asked for here; 0 if the cell cannot run
    begun: tuple[Path, ...] = ()  # folders of its runs that have begun here and not finished, or are damaged
    gone: bool = False  # the table has no such row here: it was added where the file was made
    changed: bool = False  # the cell has other runs here: its settings are others

    @property
    def of_more_seeds(self) -> bool:
        """Whether the file has results of more seeds than were asked for."""
        return 0 < self.seeds < self.runs


def losses(filled: Filled, out: Path) -> list[Loss]:
    """The cells for which the file of a table in ``out`` has more runs than have finished here, with whole files.

    Rendering would replace their numbers by fewer or none, and remove the records of their runs, which may be of
    another machine and the only ones. A file that cannot be read has nothing to lose.

    Returns:
        Those cells, in the order of the table, then those of rows that it does not have here.
    """
    rendered, name = _records_of(out / f"{filled.table.name}.csv"), filled.table.name
    labels, rows = [column.label for column in filled.table.columns], [row.label for row in filled.table.rows]
    fewer = [
        _fewer(f"{name} {row} {labels[k]}", records, cell.runs)
        for row, cells in zip(rows, filled.cells, strict=True)
        for which, cell in zip(filled.of_paper, cells, strict=True)
        for k in which
        if len(records := rendered.get((row, labels[k]), ())) > sum(map(_whole, cell.runs))
    ]
    left = {place: len(records) for place, records in rendered.items() if records and place[0] not in rows}
    return fewer + [Loss(f"{name} {row} {column}", runs, 0, gone=True) for (row, column), runs in left.items()]


def _fewer(cell: str, records: Sequence[str], runs: Sequence[Run]) -> Loss:
    begun = tuple(run.folder for run in runs if not _whole(run) and (run.folder / RESULT).exists())
    changed = bool(runs) and not {run.folder.name for run in runs} & {*records}
    return Loss(cell, len(records), len(runs), begun, changed=changed)


def _whole(run: Run) -> bool:
    """Whether a run has finished, and its record can be written."""
    if run.state != "finished":
        return False
    if run.value is not None:
        return True
    with suppress(UserError):
        run_record.read(run.folder)
        return True
    return False


def _records_of(file: Path) -> Mapping[tuple[str, str], Sequence[str]]:
    """The names of the records of a rendered file, by row and column of the paper."""
    records: dict[tuple[str, str], list[str]] = {}
    unreadable = suppress(OSError, ValueError, LookupError, TypeError, AttributeError, csv.Error)
    with unreadable, file.open(newline="", encoding="utf-8") as opened:
        for line in csv.DictReader(opened):
            place = text_of(line["row"]), text_of(line["paper_column"])
            records[place] = parse_json(text_of(line["records"]))
    return records
