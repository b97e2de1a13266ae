"""Tables as Markdown, LaTeX and CSV, and all of them on one page."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from flnl.core.errors import UserError
from flnl.storage.output_file import write_output
from flnl.tables.results import Filled

REPORT, INDEX = "report.html", "README.md"
RECORD = re.compile(r"[0-9a-f]{16}\.json")
"""Files of records: the names of runs' folders."""
NEEDED = ("jinja2", "scikit_posthocs")


def render(
    filled: Sequence[Filled], out: Path, names: Collection[str] | None = None, *, together: bool = True
) -> list[Path]:
    """Write each table as ``.md``, ``.tex`` and ``.csv`` into ``out``, all of them as ``report.html``; gives the files.

    ``runs/`` has the record of every finished run, so that the numbers can be traced where its folder is not.
    ``README.md`` names the tables and has the methods over all settings of each paper, with ``ranks_<paper>.svg`` where
    there is a test. Equal tables and runs give equal bytes.

    Args:
        filled: the tables that index and report are over, all of one scale.
        out: the folder.
        names: the tables whose own files are written; by default all.
        together: whether index, report and diagrams are written.

    Raises:
        UserError: if there is no table, the extra ``tables`` is not installed, or ``out`` cannot be written or holds
            something else.
        DiskFullError: if there is no space for a file.
    """
    if not filled:
        raise UserError("there is no table to render: name one, or none to render all")
    if lacking := [name for name in NEEDED if find_spec(name) is None]:
        raise UserError(f"rendering needs {' and '.join(lacking)}: pip install 'flnl[tables]', or make env")
    if _somebody_elses(out / INDEX):
        raise UserError(f"{out / INDEX} is not an index of tables: out= would write over it; name another folder")
    found = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name, text in _files(filled, {one.table.name for one in filled} if names is None else names, together):
            (out / name).parent.mkdir(exist_ok=True)
            write_output(out / name, text.encode(errors="backslashreplace"))
            found.append(out / name)
        _tidied(out)
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror})") from error
    return found


def _tidied(out: Path) -> None:
    """Remove records that no table of the folder speaks of any more."""
    from flnl.tables.render.evidence import RECORDS

    said = "".join(file.read_text(encoding="utf-8") for file in out.glob("*.csv"))
    for file in (out / RECORDS).glob("*.json"):
        if RECORD.fullmatch(file.name) and f"{RECORDS}/{file.name}" not in said:
            file.unlink()


def _somebody_elses(index: Path) -> bool:
    from flnl.tables.render.index import TITLE

    return index.is_file() and not index.read_text(errors="replace").startswith(TITLE)


def _files(filled: Sequence[Filled], names: Collection[str], together: bool) -> Iterator[tuple[str, str]]:
    from flnl.tables.render import csv, drawings, index, latex, markdown, records, report
    from flnl.tables.render.agreement import agreements
    from flnl.tables.render.evidence import Evidence
    from flnl.tables.render.ranking import ranking
    from flnl.tables.render.sheet import Sheet

    evidence, papers = Evidence(), []
    for name in dict.fromkeys(one.table.paper for one in filled):
        own = [one for one in filled if one.table.paper == name]
        tables = [report.Shown(Sheet(one), agreements(one), evidence) for one in own]
        papers.append(report.Paper(name, tables, ranking(name, own) if name else None, evidence))
    for table in (table for paper in papers for table in paper.tables if table.name in names):
        yield f"{table.name}.md", markdown.table(table.sheet, table.agreements, evidence.origin([table.filled]))
        yield f"{table.name}.tex", latex.table(table.sheet, table.agreements)
        yield f"{table.name}.csv", csv.table(table.filled, evidence)
    yield from records.files([one for one in filled if together or one.table.name in names], evidence).items()
    if not together:
        return
    for paper in papers:
        if paper.ranking is not None and not paper.ranking.too_few:
            yield index.figure(paper.name), drawings.svg(drawings.critical(paper.ranking, filled[0].scale))
    provenance = evidence.provenance(filled)
    yield INDEX, index.page(papers, provenance)
    yield REPORT, report.page(filled[0].scale, papers, provenance)
