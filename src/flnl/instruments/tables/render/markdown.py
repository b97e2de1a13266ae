"""A sheet as GitHub-flavoured Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Template

from flnl.console.templates import template
from flnl.instruments.tables.render import agreement
from flnl.instruments.tables.render.agreement import Agreement
from flnl.instruments.tables.render.evidence import COST_HEADING, Costs
from flnl.instruments.tables.render.sheet import NOISE, Entry, Sheet, pieces


@cache
def page(name: str) -> Template:
    """A template beside this file, with filters for what Markdown would take for its own."""
    return template(Path(__file__).with_name(name), {"escaped": escaped, "sentence": _sentence, "ours": _ours})


def table(sheet: Sheet, agreements: Sequence[Agreement], provenance: str, costs: Costs | None = None) -> str:
    """The whole file."""
    return page("table.md.j2").render(
        sheet=sheet,
        changes=sheet.filled.scale.changes,
        agreements=agreements,
        agreement=agreement,
        provenance=provenance,
        costs=costs,
        noise_heading=NOISE,
        cost_heading=COST_HEADING,
    )


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
