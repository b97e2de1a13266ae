r"""A sheet as a LaTeX ``table`` for ``\input``; it needs only the package booktabs."""

from __future__ import annotations

from collections.abc import Sequence

from flnl.instruments.compare import latex
from flnl.instruments.compare.latex import escaped, row
from flnl.instruments.tables.render.agreement import Agreement, coefficient, of_column, reversals
from flnl.instruments.tables.render.evidence import COST_HEADING, Costs
from flnl.instruments.tables.render.sheet import NOISE, Entry, Sheet, pieces


def table(sheet: Sheet, agreements: Sequence[Agreement]) -> str:
    """The whole file."""
    filled = sheet.filled
    rows: list[str] = []
    for i, (method, entries) in enumerate(zip(filled.table.rows, sheet.entries, strict=True)):
        rows += [r"\addlinespace"] if i else []
        rows.append(row([escaped(method.label), "ours", *map(_ours, entries)]))
        if sheet.printed_in(i):
            rows.append(row(["", "paper", *(escaped(entry.paper) for entry in entries)]))
        if any(entry.difference for entry in entries):
            rows.append(row(["", "difference", *(escaped(entry.difference) for entry in entries)]))
    if sheet.noise:
        rows += [r"\midrule", row([escaped(NOISE), "ours", *map(escaped, sheet.noise)])]
    return latex.table(
        rf"{escaped(sheet.title)}. \textbf{{{escaped(sheet.scale)}}} {escaped(sheet.measured)}",
        filled.table.name,
        f"ll{'r' * len(filled.columns)}",
        [row(["", "", *map(escaped, sheet.headings)])],
        rows,
        _below(sheet, agreements),
    )


def costs(sheet: Sheet, costs: Costs) -> str:
    """The table of what the methods cost, a file of its own."""
    heading, *rows = (row([*map(escaped, cells)]) for cells in costs)
    return latex.table(
        rf"{escaped(sheet.title)}. {escaped(COST_HEADING)}. \textbf{{{escaped(sheet.scale)}}}",
        f"{sheet.filled.table.name}_cost",
        f"l{'r' * (len(costs[0]) - 1)}",
        [heading],
        rows,
        [],
    )


def _below(sheet: Sheet, agreements: Sequence[Agreement]) -> list[str]:
    """The paragraphs below the table."""
    changes = " ".join(map(_sentence, sheet.filled.scale.changes))
    orders = "; ".join(f"{of_column(one)}: {coefficient(one)} ({len(one.methods)} methods)" for one in agreements)
    pairs = "; ".join(f"{of_column(one)}: {reversals(one)}" for one in agreements)
    return [
        escaped(f"{sheet.seeds} {sheet.reading}"),
        *(rf"\textsuperscript{{{i}}}~{escaped(note)}" for i, note in enumerate(sheet.footnotes, 1)),
        rf"\textbf{{{escaped(sheet.scale)}}}" + (f" {sheet.changes_title}: {changes}" if changes else ""),
        *map(escaped, sheet.notes),
        *(
            [escaped(f"Spearman's coefficient of our order of the methods and the paper's: {orders}.")]
            if orders
            else []
        ),
        *([escaped(f"Pairs of opposite order, the paper's better one first: {pairs}.")] if pairs else []),
    ]


def _sentence(text: str) -> str:
    return "".join(rf"\texttt{{{escaped(part)}}}" if code else escaped(part) for part, code in pieces(text))


def _ours(entry: Entry) -> str:
    text = escaped(entry.ours)
    count = f" ({entry.count})" if entry.count else ""
    mark = rf"\textsuperscript{{{entry.mark}}}" if entry.mark else ""
    return (rf"\textbf{{{text}}}" if entry.best else text) + count + mark
