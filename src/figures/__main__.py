"""``python -m src.figures RUN_DIR [RUN_DIR...] [--tsne]``."""

import sys
from collections.abc import Sequence
from pathlib import Path

from src import cli
from src.errors import UserError
from src.terminal import print_line

TSNE = "--tsne"
USAGE = (
    f"python -m src.figures RUN_DIR [RUN_DIR...] [{TSNE}]: draw the figures of runs from their records; "
    f"{TSNE} adds the features of each run's model, which takes its data and some seconds"
)


def redraw(words: Sequence[str]) -> None:
    """Draw the figures of every run and say where they are.

    Raises:
        UserError: for a folder without a record, before anything is drawn.
    """
    from src.figures import FOLDER, save
    from src.figures.record import read

    folders = [word for word in words if word != TSNE]
    if unknown := [word for word in folders if word.startswith("-")]:
        raise UserError(f"{unknown[0]} is no option: {USAGE}")
    if not folders:
        raise UserError(f"which run? {USAGE}")
    paths = [Path(folder).expanduser() for folder in folders]
    for path in paths:
        read(path)
    for path in paths:
        files = save(path, tsne=TSNE in words)
        names = ", ".join(file.stem for file in files) or "nothing to draw yet"
        print_line(f"{path / FOLDER}: {names}")


def main() -> None:
    """What the command runs."""
    if {"-h", "--help"} & set(sys.argv[1:]):
        print(USAGE)
        return
    cli.guarded(lambda: redraw(sys.argv[1:]), overrides=False)


if __name__ == "__main__":
    main()
