"""Compare finished runs: a table over seeds, and their curves.

    flnl compare RUN_DIR_OR_PATTERN... [--csv FILE] [--markdown FILE] [--latex FILE] [--figure FILE]
                          [--over KEY [--metric NAME]]

Runs that differ only in their seed form one row. A row is named after the keys in which the rows differ.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flnl.cli import guard
from flnl.cli.parser import Parser
from flnl.compare.runs import find, grouped, note
from flnl.compare.table import SORTS, Table
from flnl.core.errors import UserError
from flnl.core.special import is_special
from flnl.core.terminal import visible
from flnl.storage.output_file import check_output, save_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE = Path("compare.png")
NO_FIGURE = Path("none")
SUFFIXES = (".png", ".svg", ".pdf")
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
    arguments.add_argument("--sort", metavar="COLUMN", choices=SORTS, default="mean", help=f"one of {', '.join(SORTS)}")
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
    arguments.add_argument(
        "--over", metavar="KEY", help="draw a closing metric over this key instead, as in method.epsilon"
    )
    arguments.add_argument(
        "--metric", metavar="NAME", help="with --over: the closing metric, named as in result.json; by default last"
    )
    return arguments


def compare(arguments: Sequence[str]) -> None:
    """Print the table, write the requested files and draw the curves.

    Raises:
        UserError: for mistakes that the user can correct.
    """
    request = parser().parse_intermixed_args(arguments)
    if request.metric is not None and request.over is None:
        raise UserError("--metric is for the figure of --over: add --over KEY, or leave it out")
    if request.over is not None and request.figure == NO_FIGURE:
        raise UserError(f"--over {request.over} is for the figure: leave it out, or leave out --figure {NO_FIGURE}")
    check_figure(request.figure)
    files = {option: file for option in TABLES if (file := getattr(request, option)) is not None}
    for option, file in files.items():
        check_output(f"--{option} {file}", file)
    rows = grouped(find(request.runs, unfinished=request.unfinished))
    table = Table.of(rows, request.sort, with_status=request.unfinished)
    show(table)
    for option, file in files.items():
        save(f"--{option}", file, getattr(table, option)())
    if request.figure != NO_FIGURE and request.over is not None:
        draw_over(table, request.over, request.metric or "last", request.figure)
    elif request.figure != NO_FIGURE:
        draw(table, request.figure)


def check_figure(file: Path) -> None:
    """Check before anything is read that the figure can be written.

    Raises:
        UserError: if it cannot.
    """
    if file == NO_FIGURE:
        return
    check_output(f"--figure {file}", file)
    if file.suffix.lower() not in SUFFIXES and not is_special(file):
        raise UserError(f"--figure {file}: its name should end in {', '.join(SUFFIXES)}, or be {NO_FIGURE}")


def show(table: Table) -> None:
    """Print the table: on a terminal split in two if it is too wide (costs below); elsewhere as aligned text."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)
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
    """Write a table to a file.

    Raises:
        UserError: if it cannot be written.
    """
    save_output(f"{option} {file}", file, text.encode("utf-8", errors="backslashreplace"))
    note(f"{option.removeprefix('--')}: {file}")


def draw(table: Table, file: Path) -> None:
    """Draw the curves of all rows with evaluations.

    Raises:
        UserError: if the figure cannot be written.
    """
    from flnl.figures import curves

    rows = [(line.name, [run.folder for run in line.row.runs]) for line in table.lines]
    datasets = sorted({visible(line.row.dataset) for line in table.lines})
    figure = curves.draw(
        curves.read(rows), " and ".join(datasets) if len(datasets) <= 2 else f"{len(datasets)} data sets"
    )
    if figure is None:
        note("no figure: no run has recorded an evaluation")
        return
    _save(figure, file)


def draw_over(table: Table, key: str, metric: str, file: Path) -> None:
    """Draw a closing metric of the rows over a key.

    Raises:
        UserError: if they lack the key or the metric, or the figure cannot be written.
    """
    from flnl.compare.over import PERCENT, swept
    from flnl.figures import over

    lines = swept([line.row for line in table.lines], key, metric)
    _save(over.draw(lines, key, f"accuracy ({metric}), %" if metric in PERCENT else metric), file)


def _save(figure: Figure, file: Path) -> None:
    from flnl.figures import curves

    suffix = file.suffix.lower() if file.suffix.lower() in SUFFIXES else ".png"
    save_output(f"--figure {file}", file, curves.encoded(figure, suffix))
    note(f"figure: {file}")


def main() -> None:
    """Entry point of ``flnl compare``."""
    guard.guarded(lambda: compare(sys.argv[1:]), name="flnl compare", overrides=False)


if __name__ == "__main__":
    main()
