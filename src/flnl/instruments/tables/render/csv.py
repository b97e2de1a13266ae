"""A table as CSV in long form: one line per number of the paper, unrounded, with the runs behind ours."""

from __future__ import annotations

import json

from flnl.console.ties import exact
from flnl.instruments.compare.runs import shown
from flnl.instruments.tables.render.evidence import Evidence
from flnl.instruments.tables.render.sheet import differences, footnote
from flnl.instruments.tables.results import Filled
from flnl.storage.spreadsheet import csv_text

FIELDS = (
    *("table", "row", "column", "paper_column", "scale", "metric", "unit", "over"),
    *("ours", "ours_std", "seeds", "paper", "paper_std", "difference", "state", "note"),
    *("records", "folders", "commands"),
)


def table(filled: Filled, evidence: Evidence) -> str:
    """The whole file.

    ``seeds`` counts the seeds that have a value. The last three fields are JSON lists. ``records`` has the names of the
    runs in ``runs.jsonl``, of finished runs only: ``folder`` ends with it there, and the key begins with it, but for
    data of one's own. A target that a run did not reach is ``inf``. A rendered column that merges several columns of
    the paper has a line for each (``paper_column``), with the same number of ours.
    """
    rows: list[dict[str, object]] = []
    metric, labels = filled.table.metric, [column.label for column in filled.table.columns]
    for row, cells in zip(filled.table.rows, filled.cells, strict=True):
        for column, which, cell in zip(filled.columns, filled.of_paper, cells, strict=True):
            ours = {
                "table": filled.table.name,
                "row": row.label,
                "column": column.label,
                "scale": filled.scale.name,
                "metric": metric.name,
                "unit": metric.unit,
                "over": metric.over,
                "ours": exact(cell.number),
                "ours_std": exact(cell.std),
                "seeds": len(cell.values),
                "state": cell.state,
                "note": footnote(cell),
                "records": _list([name for run in cell.runs if (name := evidence.recorded(run))]),
                "folders": _list([shown(run.folder) for run in cell.runs]),
                "commands": _list([run.command for run in cell.runs]),
            }
            for k, paper, apart in zip(which, cell.papers, differences(cell), strict=True):
                theirs = {
                    "paper_column": labels[k],
                    "paper": exact(paper.mean if paper else None),
                    "paper_std": exact(paper.std if paper else None),
                    "difference": exact(apart),
                }
                rows.append(ours | theirs)
    return csv_text([FIELDS, *([row[name] for name in FIELDS] for row in rows)])


def _list(texts: list[str]) -> str:
    return json.dumps(texts, ensure_ascii=False)
