"""What the rendered tables of a folder have that rendering them anew would remove."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from flnl.storage.spreadsheet import text_of
from flnl.tables.results import Cell, Filled


def losses(filled: Filled, out: Path) -> list[str]:
    """The cells of a table for which the file in ``out`` has more runs than have finished or failed here.

    Rendering would replace their numbers by fewer or none, and remove the records of their runs, which may be of
    another machine and the only ones. A file that cannot be read has nothing to lose.

    Returns:
        Labels as in "fedcorr_2 FedAvg ρ=0.6 τ=0.5", in the order of the table.
    """
    rendered, name = _runs_of(out / f"{filled.table.name}.csv"), filled.table.name
    labels = [column.label for column in filled.table.columns]
    return [
        f"{name} {row.label} {labels[k]}"
        for row, cells in zip(filled.table.rows, filled.cells, strict=True)
        for which, cell in zip(filled.of_paper, cells, strict=True)
        for k in which
        if rendered.get((row.label, labels[k]), 0) > _ended(cell)
    ]


def _ended(cell: Cell) -> int:
    return sum(run.state != "absent" for run in cell.runs)


def _runs_of(file: Path) -> Mapping[tuple[str, str], int]:
    """How many runs a rendered file has, by row and column of the paper."""
    runs: dict[tuple[str, str], int] = {}
    unreadable = suppress(OSError, ValueError, LookupError, TypeError, AttributeError, csv.Error)
    with unreadable, file.open(newline="", encoding="utf-8") as opened:
        for line in csv.DictReader(opened):
            place = text_of(line["row"]), text_of(line["paper_column"])
            runs[place] = len(json.loads(text_of(line["records"])))
    return runs
