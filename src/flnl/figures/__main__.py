"""``flnl figures RUN_DIR [RUN_DIR...] [--tsne]``: draw the figures of runs from their records."""

import sys
from collections.abc import Sequence
from pathlib import Path

from flnl.cli import guard
from flnl.cli.parser import Parser, add_config_dir
from flnl.core.terminal import print_line


def parser() -> Parser:
    """The arguments of the command."""
    arguments = Parser(prog="flnl figures", description="Draw the figures of runs from their records.")
    arguments.add_argument("runs", metavar="RUN_DIR", type=Path, nargs="+", help="folders of runs")
    arguments.add_argument(
        "--tsne",
        action="store_true",
        help="also draw the features of each run's model; takes seconds, and the data, which are not downloaded",
    )
    add_config_dir(arguments)
    return arguments


def redraw(arguments: Sequence[str]) -> None:
    """Draw the figures of every run and print where they are.

    Raises:
        UserError: for a folder without a record, before anything is drawn.
    """
    request = parser().parse_intermixed_args(arguments)
    from flnl.figures.drawing import FOLDER, save
    from flnl.figures.record import read

    paths = [folder.expanduser() for folder in request.runs]
    for path in paths:
        read(path)
    for path in paths:
        files = save(path, tsne=request.tsne, places=request.config_dir)
        names = ", ".join(file.stem for file in files) or "nothing to draw yet"
        print_line(f"{path / FOLDER}: {names}")


def main() -> None:
    """Entry point of ``flnl figures``."""
    guard.guarded(lambda: redraw(sys.argv[1:]), name="flnl figures", overrides=False)


if __name__ == "__main__":
    main()
