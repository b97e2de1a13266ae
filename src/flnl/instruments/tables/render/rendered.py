"""Read rendered tables back from their CSV files: for what compares several scales, which need no run's folder."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import get_args, get_type_hints

from flnl.core.errors import UserError
from flnl.instruments.tables import load, run_record
from flnl.instruments.tables.render.csv import FIELDS
from flnl.instruments.tables.render.ranking import is_ranked
from flnl.instruments.tables.results import Cell, Filled, Run, Scale
from flnl.instruments.tables.run_record import Written
from flnl.instruments.tables.table import Table
from flnl.storage.input_file import parse_json
from flnl.storage.spreadsheet import text_of

Line = Mapping[str, str]
STATES = get_args(get_type_hints(Cell)["state"])


def read(folder: Path, metric: str | None = None) -> list[Filled]:
    """The papers' tables of accuracies that ``render`` wrote into ``folder``, in the order of papers and numbers.

    Args:
        folder: the folder.
        metric: in place of the tables' own numbers of ours, the mean of this metric in the records of their runs.

    Every run of a cell has the cell's number, since the file does not tell the seeds apart: means, orders and ranks are
    those of the runs, deviations are not. So tables of costs, whose target some seeds may not reach, are left out. Of
    the scale, the file has the name alone.

    Raises:
        UserError: if a table is damaged or of another version of ``conf/table``; if a run's record is, or lacks the
            metric.
    """
    files = {file.stem: file for file in folder.glob("*.csv") if file.is_file()}
    tables = [table for table in load.readable()[0] if table.name in files and table.paper and is_ranked(table)]
    runs = {} if metric is None else run_record.load(folder)
    return [_filled(table, files[table.name], _lines(table, files[table.name], metric, runs)) for table in tables]


def _filled(table: Table, file: Path, lines: Sequence[Line]) -> Filled:
    labels = [column.label for column in table.columns]
    try:
        rendered = list(dict.fromkeys(line["column"] for line in lines))
        name = lines[0]["scale"]
        scale = Scale(name, name, (), tuple(range(1, max(int(line["seeds"]) for line in lines) + 1)))
        groups = [_group(lines, column, labels) for column in rendered]
        columns = tuple(
            replace(table.columns[which[0]], label=label) for label, which in zip(rendered, groups, strict=True)
        )
        cells = tuple(
            tuple(
                _cell(table, i, which, _lines_of(lines, row.label, label))
                for label, which in zip(rendered, groups, strict=True)
            )
            for i, row in enumerate(table.rows)
        )
    except (ValueError, LookupError, TypeError, AttributeError):
        raise _unfit(table, file) from None
    return Filled(table, scale, columns, tuple(groups), cells, ())


def _unfit(table: Table, file: Path) -> UserError:
    return UserError(f"{file} does not fit conf/table/{table.name}.yaml; render it again")


def _lines(table: Table, file: Path, metric: str | None, runs: Mapping[str, Written]) -> Sequence[Line]:
    """The lines of the file, with what a metric has instead of our numbers."""
    try:
        with file.open(newline="", encoding="utf-8") as opened:
            lines: list[Line] = [{key: text_of(text) for key, text in line.items()} for line in csv.DictReader(opened)]
    except (ValueError, TypeError, AttributeError, csv.Error):
        raise _unfit(table, file) from None
    if not lines or [*lines[0]] != [*FIELDS]:
        raise _unfit(table, file)
    if metric is None:
        return lines
    try:
        return [{**line, "ours": _mean(file.parent, runs, line["records"], metric)} for line in lines]
    except (ValueError, TypeError):
        raise _unfit(table, file) from None


def _mean(folder: Path, runs: Mapping[str, Written], records: str, metric: str) -> str:
    """The mean of a metric over the runs of a cell, in percent; empty without a record."""
    values = []
    for name in parse_json(records):
        try:
            values.append(100 * runs[name].record.metrics[metric])
        except (LookupError, TypeError):
            raise UserError(f"{folder} has no record of a run {name} with {metric}") from None
    return repr(fmean(values)) if values else ""


def _group(lines: Sequence[Line], column: str, labels: Sequence[str]) -> tuple[int, ...]:
    """The columns of the paper that a rendered column merges."""
    own = dict.fromkeys(line["paper_column"] for line in lines if line["column"] == column)
    return tuple(labels.index(label) for label in own)


def _lines_of(lines: Sequence[Line], row: str, column: str) -> list[Line]:
    return [line for line in lines if line["row"] == row and line["column"] == column]


def _cell(table: Table, row: int, which: Sequence[int], lines: Sequence[Line]) -> Cell:
    line = lines[0]
    number = float(line["ours"]) if line["ours"] else None
    if number is not None and math.isnan(number):
        raise ValueError
    runs = tuple(_runs(line, number))
    return Cell(
        tuple(table.cells[row][k] for k in which),
        runs,
        STATES[STATES.index(line["state"])],
        line["note"] or None,
        table.metric.over,
    )


def _runs(line: Line, number: float | None) -> Iterator[Run]:
    folders, commands = parse_json(line["folders"]), parse_json(line["commands"])
    for k, (folder, command) in enumerate(zip(folders, commands, strict=True)):
        finished = number is not None and k < int(line["seeds"])
        yield Run(
            k + 1, Path(folder), command, number if finished else None, "finished" if finished else "absent", None, None
        )
