"""``flnl card KEY=VALUE ...``: build a federation without training, and show its card."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from pathlib import Path

from flnl.commands import guard
from flnl.commands.parser import Parser, add_config_dir
from flnl.config.folders import search_path
from flnl.core.errors import UserError
from flnl.run.overrides import check_arguments

FIGURE = "federation.png"


def show(overrides: Sequence[str], matrices: Path | None = None) -> Path:
    """Build the federation that the overrides describe, print its card, and save the card and a figure.

    Clients' confusion matrices go to the file ``matrices``, if it is given.

    Returns:
        The folder of card and figure.
    """
    import numpy as np
    from rich.console import Console

    from flnl.config import compose
    from flnl.config.check import check_config
    from flnl.console.terminal import print_line
    from flnl.data.federation.build import from_config
    from flnl.figures.curves import encoded
    from flnl.instruments.card.card import card, markdown, tables
    from flnl.instruments.card.card import matrices as confusions
    from flnl.instruments.card.figure import draw
    from flnl.storage.output_file import check_folder, save_output, write_output

    cfg = compose.load(overrides)
    check_config(cfg)
    key = "output_root" if cfg.output is None else "output"
    check_folder(f"{key}={cfg[key]}", Path(cfg[key]))
    federation = from_config(cfg, Path(cfg.cache).expanduser())
    folder = Path(cfg[key])
    if cfg.output is None:
        folder /= f"federation-{federation.fingerprint[:8]}"
    contents = card(federation)
    if matrices is not None:
        held = io.BytesIO()
        np.save(held, confusions(federation))
        save_output("--matrices", matrices, held.getvalue())
    files = {
        "card.json": (json.dumps(contents) + "\n").encode(),
        "card.md": markdown(contents).encode(errors="backslashreplace"),
        FIGURE: encoded(draw(federation), ".png"),
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
    if matrices is not None:
        print_line(f"clients' confusion matrices are in {matrices}: noise=annotators noise.path={matrices}")
    return folder


def parser() -> Parser:
    """The arguments of the command."""
    arguments = Parser(
        prog="flnl card",
        description="Build a federation without training; print its card, and save the card and a figure.",
        allow_abbrev=False,
    )
    arguments.add_argument(
        "overrides",
        metavar="KEY=VALUE",
        nargs="*",
        help="as of a run: partition=fedcorr noise.rho=0.6. output=FOLDER saves into FOLDER; by default into a new "
        "folder of output_root",
    )
    arguments.add_argument(
        "--matrices",
        metavar="FILE.npy",
        type=Path,
        help="save each client's confusion matrix, true by given class, as noise=annotators noise.path=FILE.npy takes "
        "them: labels of other data become wrong as these clients' are",
    )
    add_config_dir(arguments)
    return arguments


def run(arguments: Sequence[str]) -> None:
    """Show what the arguments describe."""
    request = parser().parse_intermixed_args(arguments)
    check_arguments(request.overrides)
    show([*search_path(request.config_dir), *request.overrides], request.matrices)


main = guard.entry("card", run)
