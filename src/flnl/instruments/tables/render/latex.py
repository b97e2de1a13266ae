r"""A sheet as a LaTeX ``table`` for ``\input``; it needs only the package booktabs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Template

from flnl.console.templates import template
from flnl.instruments.compare import latex
from flnl.instruments.compare.latex import escaped, row
from flnl.instruments.tables.render import agreement
from flnl.instruments.tables.render.agreement import Agreement
from flnl.instruments.tables.render.evidence import COST_HEADING, Costs
from flnl.instruments.tables.render.sheet import NOISE, Entry, Sheet, pieces


def table(sheet: Sheet, agreements: Sequence[Agreement]) -> str:
    """The whole file."""
    return _page().render(
        frame=latex.frame(),
        sheet=sheet,
        changes=sheet.filled.scale.changes,
        agreements=agreements,
        agreement=agreement,
        noise_heading=NOISE,
    )


@cache
def _page() -> Template:
    file = Path(__file__).with_name("table.tex.j2")
    return template(file, {"escaped": escaped, "sentence": _sentence, "ours": _ours})


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


def _sentence(text: str) -> str:
    return "".join(rf"\texttt{{{escaped(part)}}}" if code else escaped(part) for part, code in pieces(text))


def _ours(entry: Entry) -> str:
    text = escaped(entry.ours)
    count = f" ({entry.count})" if entry.count else ""
    mark = rf"\textsuperscript{{{entry.mark}}}" if entry.mark else ""
    return (rf"\textbf{{{text}}}" if entry.best else text) + count + mark
