"""A sheet, and a paper's ranking of methods, as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flnl.console.markdown import grid
from flnl.instruments.tables.render.agreement import Agreement, coefficient, of_column, reversals
from flnl.instruments.tables.render.evidence import COST_HEADING, Costs
from flnl.instruments.tables.render.ranking import Ranking, papers_mean_ranks
from flnl.instruments.tables.render.sheet import DASH, NOISE, Entry, Sheet, pieces
from flnl.instruments.tables.results import Filled


def table(sheet: Sheet, agreements: Sequence[Agreement], provenance: str, costs: Costs | None = None) -> str:
    """The whole file."""
    rows: list[list[str]] = []
    for i, (row, entries) in enumerate(zip(sheet.filled.table.rows, sheet.entries, strict=True)):
        rows.append([escaped(row.label), "ours", *map(_ours, entries)])
        if sheet.printed_in(i):
            rows.append(["", "paper", *(escaped(entry.paper) for entry in entries)])
        if any(entry.difference for entry in entries):
            rows.append(["", "difference", *(escaped(entry.difference) for entry in entries)])
    if sheet.noise:
        rows.append([f"*{NOISE}*", "ours", *map(escaped, sheet.noise)])
    parts = [
        f"# {escaped(sheet.title)}",
        f"**{escaped(sheet.scale)}**",
        f"{escaped(sheet.measured)} {escaped(sheet.seeds)} {escaped(sheet.reading)}",
        grid(["", "", *map(escaped, sheet.headings)], rows, f"ll{'r' * len(sheet.headings)}"),
        "\n".join(f"{i}. {escaped(note)}" for i, note in enumerate(sheet.footnotes, 1)),
        scale(sheet, sheet.filled.scale.changes),
        bullets("Notes", sheet.notes),
        _agreement(agreements),
        _costs(costs),
        f"{escaped(provenance)} {_traces(sheet.filled)}".rstrip(),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _traces(filled: Filled) -> str:
    if not filled.runs:
        return ""
    file = f"{filled.table.name}.csv"
    return (
        f"The runs and the commands behind every number of ours are in [{file}]({file}), "
        "their records in [runs](runs.jsonl)."
    )


def scale(sheet: Sheet, changes: Sequence[str]) -> str:
    """A block quote that states a sheet's scale and what it changes."""
    lines = [f"**{escaped(sheet.scale)}**"]
    if changes:
        lines += ["", f"{sheet.changes_title}:", "", *(f"- {_sentence(change)}" for change in changes)]
    return "\n".join(f"> {line}".rstrip() for line in lines)


def ranks(ranking: Ranking, paper: str, figure: str) -> str:
    """The mean ranks of a paper's methods, with the diagram if there is one."""
    papers = papers_mean_ranks(ranking)
    heading = ["method", "mean rank, ours", *(["mean rank, the paper's"] if papers else [])]
    rows = []
    for method, rank in ranking.mean_ranks.items():
        theirs = [f"{papers[method]:.2f}" if method in papers else DASH] if papers else []
        rows.append([escaped(method), f"{rank:.2f}", *theirs])
    image = [] if ranking.too_few else [f"![critical-difference diagram of {escaped(paper)}]({figure})"]
    return "\n\n".join([grid(heading, rows), *image])


def bullets(head: str, lines: Sequence[str]) -> str:
    """A heading line with a list; empty without lines."""
    return "\n".join([f"{head}:", "", *(f"- {escaped(line)}" for line in lines)]) if lines else ""


def escaped(text: str) -> str:
    """Escape ``text`` so that GitHub prints it literally, on one line."""
    return re.sub(r"([\\`*_{}\[\]<>|$~#])", r"\\\1", text.replace("&", "&amp;")).replace("\n", " ")


def _sentence(text: str) -> str:
    """Escape ``text``, but for its code, which Markdown takes as it is."""
    return "".join(f"`{part}`" if code else escaped(part) for part, code in pieces(text))


def _ours(entry: Entry) -> str:
    text = escaped(entry.ours)
    count = f" ({entry.count})" if entry.count else ""
    mark = f"<sup>{entry.mark}</sup>" if entry.mark else ""
    return (f"**{text}**" if entry.best else text) + count + mark


def _costs(costs: Costs | None) -> str:
    if costs is None:
        return ""
    heading, *rows = ([*map(escaped, row)] for row in costs)
    return f"{COST_HEADING}:\n\n{grid(heading, rows)}"


def _agreement(agreements: Sequence[Agreement]) -> str:
    if not agreements:
        return ""
    heading = ["column", "Spearman", "methods", "pairs of opposite order (the paper has the first ahead)"]
    rows = [[of_column(one), coefficient(one), str(len(one.methods)), reversals(one)] for one in agreements]
    return "Our order of the methods beside the paper's:\n\n" + grid(
        heading, [[*map(escaped, row)] for row in rows], "lrrl"
    )
