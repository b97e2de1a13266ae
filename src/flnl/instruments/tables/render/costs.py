"""What a run of each row of a table costs, beside its numbers."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from flnl.instruments.compare.table import COSTS, Column
from flnl.instruments.tables.render.evidence import Evidence
from flnl.instruments.tables.render.sheet import DASH
from flnl.instruments.tables.results import Filled
from flnl.record.run import RunRecord

HEADING = "What a run costs, mean over the finished runs of a row"
NEW = {"training_passes", "cpu_time_s", "peak_memory"}
"""Records of early versions have none of these: of them there is no table."""


Costs = Sequence[Sequence[str]]
"""A table: its heading, and for each row its label and its means."""


def costs(filled: Filled, evidence: Evidence) -> Costs | None:
    """The mean costs of each row's runs, a dash where no record has one; None if no record has more than a time."""
    records = [
        [evidence.record(run.folder) for cell in cells for run in cell.runs if run.state == "finished"]
        for cells in filled.cells
    ]
    every = [record for of_row in records for record in of_row]
    known = {key: cost for key, cost in COSTS.items() if any(cost.value(record) is not None for record in every)}
    if not known.keys() & NEW:
        return None
    rows = (
        [row.label, *(_mean(cost, of_row) for cost in known.values())]
        for row, of_row in zip(filled.table.rows, records, strict=True)
    )
    return [["", *(cost.heading for cost in known.values())], *rows]


def _mean(cost: Column, records: Sequence[RunRecord]) -> str:
    values = [number for record in records if (number := cost.value(record)) is not None]
    if not values:
        return DASH
    mean = fmean(values)
    return f"{mean:,.0f}" if mean >= 100 or mean.is_integer() else f"{mean:.1f}"
