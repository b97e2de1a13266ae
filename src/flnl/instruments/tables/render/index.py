"""``README.md`` of a folder of rendered tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flnl.instruments.tables.render import markdown, ranking
from flnl.instruments.tables.render.report import STATES, UNPUBLISHED, Paper, changes, is_tuned

TITLE = "# Tables at scale"
"""The first words of the page; a README that begins otherwise is not overwritten."""


def figure(paper: str) -> str:
    """File name of a paper's critical-difference diagram."""
    return f"ranks_{''.join(c if c.isalnum() else '-' for c in paper.lower())}.svg"


def page(papers: Sequence[Paper], provenance: Mapping[str, str]) -> str:
    """The page: all tables with their counts of cells, and each paper's methods ranked over all settings."""
    tables = [table for paper in papers for table in paper.tables]
    return markdown.page("index.md.j2").render(
        title=TITLE,
        tuned=is_tuned(papers),
        sheet=tables[0].sheet,
        changes=changes(papers),
        states={state: said for state, said in STATES.items() if any(table.counts[state] for table in tables)},
        tables=tables,
        provenance=provenance,
        papers=papers,
        ranking=ranking,
        figure=figure,
        unpublished=UNPUBLISHED,
    )
