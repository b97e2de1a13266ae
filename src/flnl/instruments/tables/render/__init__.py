"""Render tables as Markdown, LaTeX and CSV, and all of them on one HTML page."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from flnl.console.extras import install
from flnl.core.errors import DiskFullError, UserError
from flnl.instruments.tables import run_record
from flnl.instruments.tables.results import Filled
from flnl.storage.output_file import write_output

if TYPE_CHECKING:
    from flnl.instruments.tables.render.evidence import Evidence

REPORT, INDEX = "report.html", "README.md"
NEEDED = "scikit_posthocs"


def render(
    filled: Sequence[Filled], out: Path, names: Collection[str] | None = None, *, together: bool = True
) -> list[Path]:
    """Write each table as ``.md``, ``.tex`` and ``.csv`` into ``out``, and all of them as ``report.html``.

    If its runs have recorded what they cost, that is in ``.md`` and in ``_cost.tex``, too.

    ``runs.jsonl`` gets a line for every finished run, so numbers can be traced without the run's folder; it keeps the
    runs of other tables in ``out``. ``README.md`` lists the tables and ranks each paper's methods over all settings,
    with ``ranks_<paper>.svg`` if there are enough settings for a test. Equal tables and runs give equal bytes.

    Index, report and diagrams are of all tables in ``filled``, of one scale, if they are written ``together`` with the
    files of the tables in ``names``, by default all. Returns the files written.

    Raises:
        UserError: if there is no table, the extra ``tables`` is not installed, or ``out`` cannot be written or contains
            another README or damaged records.
        DiskFullError: if the disk is full.
    """
    if not filled:
        raise UserError("there is no table to render: name one, or none to render all")
    if find_spec(NEEDED) is None:
        raise UserError(f"rendering needs {NEEDED}: {install('tables')}")
    from flnl.instruments.tables.render.index import TITLE

    if is_foreign(out / INDEX, TITLE):
        raise UserError(f"{out / INDEX} is not an index of tables: out= would overwrite it; name another folder")
    from flnl.instruments.tables.render.evidence import Evidence

    evidence, names = Evidence(), {one.table.name for one in filled} if names is None else names
    runs = evidence.lines(one for one in filled if together or one.table.name in names)
    paths = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        run_record.save(out, runs)  # first, so that no table names a run that is not there
        for name, text in _files(filled, names, together, evidence):
            write_output(out / name, text.encode(errors="backslashreplace"))
            paths.append(out / name)
        run_record.save(out, runs, tidy=True)
    except DiskFullError:
        raise
    except OSError as error:
        raise UserError(f"{out} cannot be written ({error.strerror})") from error
    return [*paths, out / run_record.RUNS]


def is_foreign(page: Path, title: str) -> bool:
    """Whether there is a page, but not the one of which ``title`` is the beginning."""
    return page.is_file() and not page.read_text(errors="replace").startswith(title)


def _files(
    filled: Sequence[Filled], names: Collection[str], together: bool, evidence: Evidence
) -> Iterator[tuple[str, str]]:
    from flnl.instruments.compare import diagram
    from flnl.instruments.tables.render import csv, drawings, index, latex, markdown, report
    from flnl.instruments.tables.render.agreement import agreements
    from flnl.instruments.tables.render.ranking import ranking
    from flnl.instruments.tables.render.sheet import Sheet

    papers, first = [], dict[tuple[object, ...], report.Repeat]()
    for name in dict.fromkeys(one.table.paper for one in filled):
        of_paper = [one for one in filled if one.table.paper == name]
        tables = [report.Shown(Sheet(one), agreements(one), evidence, report.repeats(one, first)) for one in of_paper]
        papers.append(report.Paper(name, tables, ranking(of_paper) if name else None))
    for table in (table for paper in papers for table in paper.tables if table.name in names):
        origin = evidence.origin([table.filled])
        yield f"{table.name}.md", markdown.table(table.sheet, table.agreements, origin, table.costs)
        yield f"{table.name}.tex", latex.table(table.sheet, table.agreements)
        if table.costs is not None:
            yield f"{table.name}_cost.tex", latex.costs(table.sheet, table.costs)
        yield f"{table.name}.csv", csv.table(table.filled, evidence)
    if not together:
        return
    for paper in papers:
        if paper.ranking is not None and not paper.ranking.too_few:
            drawn = diagram.draw(paper.ranking, paper.tables[0].filled.scale.caption)
            yield index.figure(paper.name), drawings.svg(drawn)
    provenance = evidence.provenance(filled)
    yield INDEX, index.page(papers, provenance)
    yield REPORT, report.page(papers, provenance)
