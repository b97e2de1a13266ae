"""A filled table in long form, as CSV: a line a cell, numbers unrounded, with the runs that they are of."""

from __future__ import annotations

import csv
import io
import json

from src.compare.runs import shown
from src.tables.filled import Filled
from src.tables.render.evidence import Evidence
from src.tables.render.sheet import difference

FIELDS = (
    "table",
    "row",
    "column",
    "scale",
    "metric",
    "unit",
    "ours_mean",
    "ours_std",
    "seeds",
    "paper_mean",
    "paper_std",
    "difference",
    "state",
    "note",
    "paper_columns",
    "records",
    "folders",
    "commands",
)


def table(filled: Filled, evidence: Evidence) -> str:
    """The whole file; ``seeds`` counts those with a number, and the last four fields are lists in JSON.

    A target that some run did not reach is ``inf``; ``records`` are files beside this one, of finished runs alone.
    Where a column stands for several of the paper's, ``paper_columns`` has them all and the paper's number is empty.
    """
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, FIELDS, lineterminator="\n")
    writer.writeheader()
    metric, labels = filled.table.metric, [column.label for column in filled.table.columns]
    for row, cells in zip(filled.table.rows, filled.cells, strict=True):
        for column, which, cell in zip(filled.columns, filled.of_paper, cells, strict=True):
            writer.writerow(
                {
                    "table": filled.table.name,
                    "row": row.label,
                    "column": column.label,
                    "scale": filled.scale.name,
                    "metric": metric.name,
                    "unit": metric.unit,
                    "ours_mean": _number(cell.mean),
                    "ours_std": _number(cell.std),
                    "seeds": len(cell.values),
                    "paper_mean": _number(cell.paper.mean if cell.paper else None),
                    "paper_std": _number(cell.paper.std if cell.paper else None),
                    "difference": _number(difference(cell)),
                    "state": cell.state,
                    "note": cell.note or "",
                    "paper_columns": _list([labels[k] for k in which]),
                    "records": _list([name for run in cell.runs if (name := evidence.recorded(run))]),
                    "folders": _list([shown(run.folder) for run in cell.runs]),
                    "commands": _list([run.command for run in cell.runs]),
                }
            )
    return text.getvalue()


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.10g}"


def _list(texts: list[str]) -> str:
    return json.dumps(texts, ensure_ascii=False)
