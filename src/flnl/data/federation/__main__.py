"""``flnl card [key=value ...]``: draw a federation and show its card, without training."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from flnl.core.errors import UserError

FIGURE = "federation.png"


def show(overrides: Sequence[str]) -> Path:
    """Build the federation that the overrides describe, print its card, and give the folder that has it and the figure.

    Raises:
        UserError: for what the user can mend.
    """
    from rich.console import Console

    from flnl.config import compose
    from flnl.config.check import check_config
    from flnl.core.terminal import print_line
    from flnl.data.federation.build import from_config
    from flnl.data.federation.card import card, markdown, tables
    from flnl.data.federation.figure import encoded
    from flnl.storage.output_file import write_output

    cfg = compose.load(overrides)
    check_config(cfg)
    federation = from_config(cfg, Path(cfg.cache).expanduser())
    key, folder = "output", Path(cfg.output or "")
    if cfg.output is None:
        key, folder = "output_root", Path(cfg.output_root) / f"federation-{federation.fingerprint[:8]}"
    found = card(federation)
    files = {
        "card.json": (json.dumps(found) + "\n").encode(),
        "card.md": markdown(found).encode(errors="backslashreplace"),
        FIGURE: encoded(federation),
    }
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, content in files.items():
            write_output(folder / name, content)
    except OSError as error:
        raise UserError(f"{key}={cfg[key]}: {error.strerror or error}; choose a folder you can write to") from error
    console = Console()
    for table in tables(found, console.width):
        console.print(table)
    print_line(f"card.md, card.json and {FIGURE} are in {folder}")
    return folder


def main() -> None:
    """What ``flnl card`` runs."""
    from flnl.cli import guard

    if {"-h", "--help"} & set(sys.argv[1:]):
        print("flnl card [key=value ...]: draw a federation and show its card, without training")
        return
    guard.guarded(lambda: show(sys.argv[1:]))


if __name__ == "__main__":
    main()
