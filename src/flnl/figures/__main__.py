"""``flnl figures RUN_DIR [RUN_DIR...] [--tsne]``."""

import sys
from collections.abc import Sequence
from pathlib import Path

from flnl.cli import guard
from flnl.cli.parser import Parser, add_config_dir
from flnl.core.terminal import print_line


def parser() -> Parser:
    """What the command takes."""
    words = Parser(prog="flnl figures", description="Draw the figures of runs from their records.")
    words.add_argument("runs", metavar="RUN_DIR", type=Path, nargs="+", help="folders of runs")
    words.add_argument(
        "--tsne",
        action="store_true",
        help="add the features of each run's model, which takes its data and some seconds; data are not fetched",
    )
    add_config_dir(words)
    return words


def redraw(words: Sequence[str]) -> None:
    """Draw the figures of every run and say where they are.

    Raises:
        UserError: for a folder without a record, before anything is drawn.
    """
    asked = parser().parse_args(words)
    from flnl.figures.drawing import FOLDER, save
    from flnl.figures.record import read

    paths = [folder.expanduser() for folder in asked.runs]
    for path in paths:
        read(path)
    for path in paths:
        files = save(path, tsne=asked.tsne, places=asked.config_dir)
        names = ", ".join(file.stem for file in files) or "nothing to draw yet"
        print_line(f"{path / FOLDER}: {names}")


def main() -> None:
    """What the command runs."""
    guard.guarded(lambda: redraw(sys.argv[1:]), overrides=False)


if __name__ == "__main__":
    main()
