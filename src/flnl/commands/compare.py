"""Compare finished runs: a table over seeds, and their curves.

    flnl compare RUN_DIR_OR_PATTERN... [--where KEY=VALUE]
                          [--cost] [--rows KEYS] [--columns KEYS] [--measure NAME] [--against ROW]
                          [--csv FILE] [--markdown FILE] [--latex FILE] [--figure FILE] [--ranks FILE] [--over KEY]

Runs that differ only in their seed form one row. A row is named after the keys in which the rows differ. With rows,
columns, a measure or a baseline, the table is one measure of rows in columns, with paired tests.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from flnl.commands import guard
from flnl.commands.parser import Parser
from flnl.console.extras import install
from flnl.console.terminal import visible
from flnl.core.errors import UserError
from flnl.core.special import is_special
from flnl.instruments.compare.runs import Row, find, grouped, note
from flnl.instruments.compare.selection import ordered, where
from flnl.instruments.compare.table import COSTS, SORTS, Table, measured
from flnl.storage.output_file import check_output, save_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from flnl.instruments.compare.crossed import Crossed
    from flnl.instruments.compare.printed import Printed

FIGURE = Path("compare.png")
NO_FIGURE = Path("none")
SUFFIXES = (".png", ".svg", ".pdf")
WIDTH = 100
"""Characters of a line where the table of one measure is not printed on a terminal."""
MOST_LINES = 12
"""Rows in a panel of the figure."""
TABLES = ("csv", "markdown", "latex")
"""The options that write the table to a file, named as its methods."""


def parser() -> Parser:
    """The arguments of the command."""
    arguments = Parser(
        prog="flnl compare",
        description="Compare finished runs: a table over seeds, and their curves.",
        allow_abbrev=False,
    )
    arguments.add_argument(
        "runs",
        metavar="RUN_DIR_OR_PATTERN",
        nargs="+",
        help="runs, folders that contain runs, quoted patterns (** matches any depth), or files of flnl tune --report",
    )
    arguments.add_argument("--unfinished", action="store_true", help="also take unfinished runs")
    arguments.add_argument(
        "--where", metavar="KEY=VALUE", action="append", default=[], help="only runs with this value (or VALUE,VALUE)"
    )
    arguments.add_argument(
        "--columns",
        metavar="KEYS",
        type=_keys,
        help="show one measure; a column for each value, as in noise.rho,dataset",
    )
    arguments.add_argument(
        "--rows", metavar="KEYS", type=_keys, help="a row for each value of these keys; by default what else differs"
    )
    arguments.add_argument(
        "--measure", metavar="NAME", help=f"the measure: {', '.join(SORTS[2:])}, or as in result.json; by default last"
    )
    arguments.add_argument(
        "--against",
        metavar="ROW",
        action="append",
        default=[],
        help="test rows against this one, as in method=fedavg; may be repeated; by default the best of each column",
    )
    arguments.add_argument(
        "--sort",
        metavar="COLUMN",
        choices=SORTS,
        help=f"one of {', '.join(SORTS)}; with --columns and others only name",
    )
    arguments.add_argument("--cost", action="store_true", help="show what the runs cost in place of their accuracies")
    arguments.add_argument("--csv", metavar="FILE", type=Path, help="write the numbers to FILE, unrounded")
    arguments.add_argument("--markdown", metavar="FILE", type=Path, help="write the table to FILE")
    arguments.add_argument("--latex", metavar="FILE", type=Path, help="write the table to FILE")
    arguments.add_argument(
        "--figure",
        metavar="FILE",
        type=Path,
        default=FIGURE,
        help=f"draw the curves to FILE ({', '.join(SUFFIXES)}; by default {FIGURE}), or {NO_FIGURE}; a device gets PNG",
    )
    arguments.add_argument("--over", metavar="KEY", help="draw the measure over this key instead, as in method.epsilon")
    arguments.add_argument(
        "--ranks", metavar="FILE", type=Path, help="draw mean ranks over the columns with their critical difference"
    )
    return arguments


def compare(arguments: Sequence[str]) -> None:
    """Print the table, write the requested files and draw the curves."""
    request = parser().parse_intermixed_args(arguments)
    if request.over is not None and request.figure == NO_FIGURE:
        raise UserError(f"--over {request.over} is for the figure: leave it out, or leave out --figure {NO_FIGURE}")
    crossing = bool(
        request.rows or request.columns or request.against or request.ranks or (request.measure and not request.over)
    )
    if crossing and request.cost:
        costs = ", ".join(cost.key for cost in COSTS.values())
        raise UserError(
            f"--cost is for the table of all metrics; one of one measure can show a cost: --measure {costs}"
        )
    if crossing and request.sort not in (None, "name"):
        raise UserError(
            f"--sort {request.sort} is for the table of all metrics; that of one measure can be sorted by name"
        )
    if request.figure != NO_FIGURE:
        check_figure("--figure", request.figure)
    if request.ranks is not None:
        check_figure("--ranks", request.ranks)
        if find_spec("scikit_posthocs") is None:
            raise UserError(f"--ranks needs scikit-posthocs: {install('tables')}")
    files = {option: file for option in TABLES if (file := getattr(request, option)) is not None}
    for option, file in files.items():
        check_output(f"--{option} {file}", file)
    rows = grouped(where(find(request.runs, unfinished=request.unfinished), request.where))
    table: Table | Printed
    if crossing:
        table = cross(rows, request)
    else:
        table = Table.of(rows, request.sort or "mean", with_status=request.unfinished, cost=request.cost)
    show(table)
    if isinstance(table, Table) and table.unequal:
        note("rows on the same data have unequal seeds, so none of them is bold; --where seed=... takes some alone")
    for option, file in files.items():
        save(f"--{option}", file, getattr(table, option)())
    if request.ranks is not None and not isinstance(table, Table):
        draw_ranks(table.table, request.ranks)
    if request.figure != NO_FIGURE and request.over is not None:
        draw_over(rows, request.over, request.measure or "last", request.figure)
    elif request.figure != NO_FIGURE:
        draw(panels(table), sorted({visible(row.dataset) for row in rows}), request.figure)


def _keys(text: str) -> list[str]:
    return [key for key in text.split(",") if key]


def cross(rows: Sequence[Row], request: Namespace) -> Printed:
    """The table of one measure."""
    from flnl.instruments.compare.crossed import crossed
    from flnl.instruments.compare.printed import Printed

    by_name = request.sort == "name"
    column = measured(request.measure or "last", rows)
    return Printed(crossed(rows, column, request.rows, request.columns, request.against, by_name=by_name))


def check_figure(option: str, file: Path) -> None:
    """Check before anything is read that the figure can be written.

    Raises:
        UserError: if it cannot.
    """
    check_output(f"{option} {file}", file)
    if file.suffix.lower() not in SUFFIXES and not is_special(file):
        or_none = f", or be {NO_FIGURE}" if option == "--figure" else ""
        raise UserError(f"{option} {file}: its name should end in {', '.join(SUFFIXES)}{or_none}")


def show(table: Table | Printed) -> None:
    """Print the table as wide as the terminal is; elsewhere as aligned text."""
    from rich.console import Console
    from rich.text import Text

    console = Console(markup=False, highlight=False)
    if not isinstance(table, Table):
        for line in table.text(console.width if console.is_terminal else WIDTH, bold=console.is_terminal):
            text = "".join(piece for piece, _ in line)
            if console.is_terminal:
                console.print(Text.assemble(*((piece, "bold" if bold else "") for piece, bold in line)))
            else:
                print(text.rstrip())
        return
    if not console.is_terminal:
        print(table.text(), end="")
        return
    parts = [table.columns]
    if table.rich(table.columns, console.width) is None:
        parts = [[column for column in table.columns if column.spread == spread] for spread in (True, False)]
    for i, columns in enumerate(parts):
        shown = table.rich(columns, console.width)
        if shown is None:  # never truncate numbers; let the terminal wrap the lines
            print(table.text(), end="")
            return
        console.print(*([""] if i else []), shown, sep="\n")


def save(option: str, file: Path, text: str) -> None:
    """Write a table to a file."""
    save_output(f"{option} {file}", file, text.encode("utf-8", errors="backslashreplace"))
    note(f"{option.removeprefix('--')}: {file}")


def panels(table: Table | Printed) -> list[tuple[str, list[tuple[str, list[Path]]]]]:
    """The panels of the figure: a title for each setting, or column, and its rows with the folders of their runs."""
    if isinstance(table, Table):
        rows = [(setting, name, line.row) for line, (setting, name) in zip(table.lines, table.panels(), strict=True)]
    else:
        of = table.table
        rows = [(of.columns[j].heading, of.names[i], cell.row) for (i, j), cell in sorted(of.cells.items())]
    found: dict[str, list[tuple[str, list[Path]]]] = {}
    for setting, name, row in rows:
        found.setdefault(setting, []).append((name, [run.folder for run in row.runs]))
    return sorted(found.items(), key=lambda panel: [ordered(word.partition("=")[2]) for word in panel[0].split()])


def draw(named: Sequence[tuple[str, Sequence[tuple[str, Sequence[Path]]]]], datasets: list[str], file: Path) -> None:
    """Draw the curves of all rows with evaluations; of more than a dozen in a panel, the first."""
    from flnl.figures import curves

    title = " and ".join(datasets) if len(datasets) <= 2 else f"{len(datasets)} data sets"
    for setting, rows in named:
        if len(rows) > MOST_LINES:
            where = f"{setting}: " if setting else ""
            note(f"{where}the first {MOST_LINES} of {len(rows)} rows are drawn; --where chooses others")
    read = [(setting, curves.read(rows[:MOST_LINES])) for setting, rows in named]
    figure = curves.draw(read[0][1], title) if len(read) == 1 else curves.draw_panels(read, title)
    if figure is None:
        note("no figure: no run has recorded an evaluation")
        return
    _save(figure, "--figure", file)


def draw_over(rows: Sequence[Row], key: str, measure: str, file: Path) -> None:
    """Draw a measure of the rows over a key."""
    from flnl.instruments.compare import over

    column = measured(measure, rows)
    heading = f"accuracy ({measure}), %" if column.accuracy else column.heading
    _save(over.draw(over.swept(rows, key, column), key, heading), "--figure", file)


def draw_ranks(table: Crossed, file: Path) -> None:
    """Draw the critical-difference diagram of the table's rows over its columns.

    Raises:
        UserError: if there are too few for a test, or the figure cannot be written.
    """
    from flnl.instruments.compare import diagram

    ranking = table.ranking
    if ranking is None or ranking.too_few:
        why = "no column has two rows of equal seeds" if ranking is None else ranking.too_few
        raise UserError(f"--ranks {file}: {why}")
    _save(diagram.draw(ranking, f": {table.measure.heading}"), "--ranks", file)


def _save(figure: Figure, option: str, file: Path) -> None:
    from flnl.figures import curves

    suffix = file.suffix.lower() if file.suffix.lower() in SUFFIXES else ".png"
    save_output(f"{option} {file}", file, curves.encoded(figure, suffix))
    note(f"{option.removeprefix('--')}: {file}")


main = guard.entry("compare", compare)
