"""``flnl card KEY=VALUE ...``: build a federation without training, and show its card."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from flnl.core.errors import UserError

FIGURE = "federation.png"


USAGE = """\
flnl card KEY=VALUE ...
Build a federation without training; print its card, and save the card and a figure.

  flnl card partition=fedcorr noise.rho=0.6    overrides as of a run; flnl run --help lists them
  flnl card ... output=FOLDER                  save into FOLDER; by default into a new folder of output_root"""


def show(overrides: Sequence[str]) -> Path:
    """Build the federation that the overrides describe, print its card, and save the card and a figure.

    Returns:
        The folder of card and figure.

    Raises:
        UserError: for mistakes that the user can correct.
    """
    if options := [word for word in overrides if word.startswith("-")]:
        raise UserError(f"{options[0]}: flnl card takes overrides alone, as in noise.rho=0.6; see flnl card --help")
    from rich.console import Console

    from flnl.config import compose
    from flnl.config.check import check_config
    from flnl.core.terminal import print_line
    from flnl.data.federation.build import from_config
    from flnl.data.federation.card import card, markdown, tables
    from flnl.data.federation.figure import encoded
    from flnl.storage.output_file import check_folder, write_output

    cfg = compose.load(overrides)
    check_config(cfg)
    key = "output_root" if cfg.output is None else "output"
    check_folder(f"{key}={cfg[key]}", Path(cfg[key]))
    federation = from_config(cfg, Path(cfg.cache).expanduser())
    folder = Path(cfg[key])
    if cfg.output is None:
        folder /= f"federation-{federation.fingerprint[:8]}"
    contents = card(federation)
    files = {
        "card.json": (json.dumps(contents) + "\n").encode(),
        "card.md": markdown(contents).encode(errors="backslashreplace"),
        FIGURE: encoded(federation),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_output(folder / name, content)
    except OSError as error:
        raise UserError(f"{key}={cfg[key]}: {error.strerror or error}; choose a folder you can write to") from error
    console = Console()
    for table in tables(contents, console.width):
        console.print(table)
    print_line(f"card.md, card.json and {FIGURE} are in {folder}")
    return folder


def main() -> None:
    """Entry point of ``flnl card``."""
    from flnl.cli import guard

    if {"-h", "--help"} & set(sys.argv[1:]):
        print(USAGE)
        return
    guard.guarded(lambda: show(sys.argv[1:]), name="flnl card")


if __name__ == "__main__":
    main()
