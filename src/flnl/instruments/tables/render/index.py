"""``README.md`` of a folder of rendered tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flnl.console.markdown import grid
from flnl.instruments.tables.render.markdown import bullets, escaped, ranks, scale
from flnl.instruments.tables.render.ranking import left_out, rests_on
from flnl.instruments.tables.render.report import STATES, UNPUBLISHED, Paper, changes, is_tuned

TITLE = "# Tables at scale"
"""The first words of the page; a README that begins otherwise is not overwritten."""


def figure(paper: str) -> str:
    """File name of a paper's critical-difference diagram."""
    return f"ranks_{''.join(c if c.isalnum() else '-' for c in paper.lower())}.svg"


def page(papers: Sequence[Paper], provenance: Mapping[str, str]) -> str:
    """The page: all tables with their counts of cells, and each paper's methods ranked over all settings."""
    sheet = papers[0].tables[0].sheet
    used = [state for state in STATES if any(table.counts[state] for paper in papers for table in paper.tables)]
    heading, rows = ["table", "metric", "cells", *(STATES[state] for state in used)], []
    for table in (table for paper in papers for table in paper.tables):
        link = f"[{escaped(table.sheet.title)}]({table.name}.md)"
        counts = [str(table.counts[state]) for state in used]
        rows.append([link, escaped(table.filled.table.metric.name), str(table.counts.total()), *counts])
    parts = [
        f"{TITLE} “{escaped(sheet.filled.scale.name)}”{', tuned' if is_tuned(papers) else ''}, ours beside the papers'",
        scale(sheet, changes(papers)),
        "Each table is here as `.md` and `.csv`. [runs.jsonl](runs.jsonl) has a line for each run: its command, its "
        "closing numbers, and what it was made with. `flnl tables render` also writes each table as `.tex`, and "
        "`report.html`: all tables on one page, with curves, figures, and the runs and commands behind every number.",
        grid(heading, rows, f"llr{'r' * len(used)}"),
        bullets("Where the numbers come from", [f"{name}: {text}" for name, text in provenance.items()]),
    ]
    for paper in papers:
        if paper.ranking is not None:
            parts += [
                f"## {escaped(paper.name or UNPUBLISHED)}: methods over all settings",
                escaped(paper.ranking.verdict),
                ranks(paper.ranking, paper.name, figure(paper.name)),
                bullets("What it rests on", [rests_on(paper.ranking), *left_out(paper.ranking)]),
            ]
    return "\n\n".join(part for part in parts if part) + "\n"
