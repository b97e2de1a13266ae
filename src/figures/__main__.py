"""``python -m src.figures RUN_DIR [RUN_DIR...]``."""

import logging
import sys
from collections.abc import Sequence
from pathlib import Path

from src import cli
from src.errors import UserError

USAGE = "python -m src.figures RUN_DIR [RUN_DIR...]: draw the figures of runs from their records"


def redraw(folders: Sequence[str]) -> None:
    """Draw the figures of every run and say where they are.

    Raises:
        UserError: for a folder without a record, before anything is drawn.
    """
    from src.figures import FOLDER, save
    from src.figures.record import read

    if not folders:
        raise UserError(f"which run? {USAGE}")
    paths = [Path(folder).expanduser() for folder in folders]
    for path in paths:
        read(path)
    for path in paths:
        files = save(path)
        names = ", ".join(file.stem for file in files) or "nothing to draw yet"
        print(f"{path / FOLDER}: {names}")


def main() -> None:
    """What the command runs."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(USAGE)
        return
    cli.guarded(lambda: redraw(sys.argv[1:]))


if __name__ == "__main__":
    main()
