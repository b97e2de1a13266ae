"""Put finished runs side by side: a table over seeds, and their curves.

    flnl compare RUN_DIR_OR_PATTERN... [--csv FILE] [--markdown FILE] [--latex FILE] [--figure FILE]
                          [--over KEY [--metric NAME]]

Runs that differ in their seed only are one row. Its name tells the keys in which the rows differ.
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
from flnl.core.terminal import visible
from flnl.storage.output_file import is_special, write_output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

FIGURE = Path("compare.png")
NO_FIGURE = Path("none")
SUFFIXES = (".png", ".svg", ".pdf")


def parser() -> Parser:
    """What the command takes."""
    words = Parser(
        prog="flnl compare",
        description="Put finished runs side by side: a table over seeds, and their curves.",
        allow_abbrev=False,
    )
    words.add_argument(
        "runs",
        metavar="RUN_DIR_OR_PATTERN",
        nargs="+",
        help="runs; of a folder, all that lie below; of a pattern in quotes (** for any depth), all it fits",
    )
    words.add_argument("--unfinished", action="store_true", help="take runs that are not finished, too")
    words.add_argument("--sort", metavar="COLUMN", choices=SORTS, default="mean", help=f"one of {', '.join(SORTS)}")
    words.add_argument("--csv", metavar="FILE", type=Path, help="write the numbers there, unrounded")
    words.add_argument("--markdown", metavar="FILE", type=Path, help="write the table there")
    words.add_argument("--latex", metavar="FILE", type=Path, help="write the table there")
    words.add_argument(
        "--figure",
        metavar="FILE",
        type=Path,
        default=FIGURE,
        help=f"draw the curves there ({', '.join(SUFFIXES)}; by default {FIGURE}), or {NO_FIGURE}; a device gets PNG",
    )
    words.add_argument("--over", metavar="KEY", help="draw a closing number over this key instead, as method.epsilon")
    words.add_argument(
        "--metric", metavar="NAME", default="last", help="that number, as in result.json; by default last"
    )
    return words


def compare(words: Sequence[str]) -> None:
    """Show the table, write what was asked for and draw the curves.

    Raises:
        UserError: for what the user can mend.
    """
    asked = parser().parse_args(words)
    check_figure(asked.figure)
    rows = grouped(find(asked.runs, unfinished=asked.unfinished))
    table = Table.of(rows, asked.sort, with_status=asked.unfinished)
    show(table)
    for option, text in (("csv", table.csv), ("markdown", table.markdown), ("latex", table.latex)):
        file = getattr(asked, option)
        if file is not None:
            save(f"--{option}", file, text())
    if asked.figure != NO_FIGURE and asked.over is not None:
        draw_over(table, asked.over, asked.metric, asked.figure)
    elif asked.figure != NO_FIGURE:
        draw(table, asked.figure)


def check_figure(file: Path) -> None:
    """Refuse a figure that could not be written, before anything is read.

    Raises:
        UserError: if that is so.
    """
    if file == NO_FIGURE:
        return
    try:
        special = is_special(file)
    except OSError as error:
        raise UserError(f"--figure {file} cannot be written ({error.strerror})") from error
    if file.suffix.lower() not in SUFFIXES and not special:
        raise UserError(f"--figure {file}: its name should end in {', '.join(SUFFIXES)}, or be {NO_FIGURE}")
    if not file.parent.is_dir():
        raise UserError(f"--figure {file}: there is no folder {file.parent}")


def show(table: Table) -> None:
    """A table on a terminal, with what runs cost in one below where that does not fit; aligned text elsewhere."""
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
        if shown is None:  # numbers are not cut: the terminal breaks the lines
            print(table.text(), end="")
            return
        console.print(*([""] if i else []), shown, sep="\n")


def save(option: str, file: Path, text: str) -> None:
    """Write a table.

    Raises:
        UserError: if it cannot be.
    """
    try:
        write_output(file, text.encode("utf-8", errors="backslashreplace"))
    except OSError as error:
        raise UserError(f"{option} {file} cannot be written ({error.strerror})") from error
    note(f"{option.removeprefix('--')}: {file}")


def draw(table: Table, file: Path) -> None:
    """Draw the curves of the rows that have some.

    Raises:
        UserError: if the figure cannot be written.
    """
    from flnl.figures import curves

    rows = [(line.name, [run.folder for run in line.row.runs]) for line in table.lines]
    found = sorted({visible(line.row.dataset) for line in table.lines})
    figure = curves.draw(curves.read(rows), " and ".join(found) if len(found) <= 2 else f"{len(found)} data sets")
    if figure is None:
        note("no figure: no run has recorded an evaluation")
        return
    _save(figure, file)


def draw_over(table: Table, key: str, metric: str, file: Path) -> None:
    """Draw a closing number of the rows over a key.

    Raises:
        UserError: if they have no such key or number, or the figure cannot be written.
    """
    from flnl.compare.over import PERCENT, swept
    from flnl.figures import over

    lines = swept([line.row for line in table.lines], key, metric)
    _save(over.draw(lines, key, f"accuracy ({metric}), %" if metric in PERCENT else metric), file)


def _save(figure: Figure, file: Path) -> None:
    from flnl.figures import curves

    try:
        write_output(file, curves.encoded(figure, file.suffix.lower() if file.suffix.lower() in SUFFIXES else ".png"))
    except OSError as error:
        raise UserError(f"--figure {file} cannot be written ({error.strerror})") from error
    note(f"figure: {file}")


def main() -> None:
    """What ``flnl compare`` runs."""
    guard.guarded(lambda: compare(sys.argv[1:]), overrides=False)


if __name__ == "__main__":
    main()
