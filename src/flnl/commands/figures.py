"""``flnl figures RUN_DIR [RUN_DIR...] [--tsne] [--format png,svg,pdf] [--dpi N]``: draw the figures of runs."""

from argparse import ArgumentTypeError
from collections.abc import Sequence
from pathlib import Path

from flnl.commands import guard
from flnl.commands.parser import Parser, add_config_dir
from flnl.console.terminal import print_line
from flnl.core.errors import UserError


def parser() -> Parser:
    """The arguments of the command."""
    arguments = Parser(prog="flnl figures", description="Draw the figures of runs from their records.")
    arguments.add_argument(
        "runs",
        metavar="RUN_DIR",
        type=Path,
        nargs="+",
        help="folders of runs; with --tsne also KEY=PATH, where data lie here, as in dataset.root=FOLDER",
    )
    arguments.add_argument(
        "--tsne",
        action="store_true",
        help="also draw the features of each run's model; takes seconds, and the data, which are not downloaded",
    )
    arguments.add_argument(
        "--format",
        metavar="FORMATS",
        type=_formats,
        default=("png",),
        help="file formats, separated by commas, of png, svg and pdf; by default png",
    )
    arguments.add_argument("--dpi", type=_dpi, default=150, help="pixels per inch of png files; by default 150")
    add_config_dir(arguments)
    return arguments


def _formats(text: str) -> tuple[str, ...]:
    from flnl.figures.drawing import FORMATS

    formats = tuple(dict.fromkeys(text.lower().split(",")))
    if unknown := [one for one in formats if one not in FORMATS]:
        raise ArgumentTypeError(f"{unknown[0] or text!r} is not a format; there are {', '.join(FORMATS)}")
    return formats


def _dpi(text: str) -> int:
    if not text.isdecimal() or not 10 <= int(text) <= 1200:
        raise ArgumentTypeError(f"{text}: must be a whole number from 10 to 1200")
    return int(text)


def redraw(arguments: Sequence[str]) -> None:
    """Draw the figures of every run and print where they are.

    Raises:
        UserError: for a folder without a record, or without the model that ``--tsne`` needs, before anything is drawn.
    """
    request = parser().parse_intermixed_args(arguments)
    from flnl.config.identity import PLACES
    from flnl.config.recorded import places_of
    from flnl.figures.drawing import FOLDER, save
    from flnl.record.run import RunRecord
    from flnl.storage.output_file import check_folder

    words = [str(word) for word in request.runs if str(word).partition("=")[0] in PLACES]
    paths = [folder.expanduser() for folder in request.runs if str(folder) not in words]
    if not paths or (words and not request.tsne):
        raise UserError(
            f"{words[0]} says where the data of a run lie: name RUN_DIR, and --tsne, which draws their features"
        )
    data = places_of(words)
    records = [RunRecord.open(path).with_lines() for path in paths]
    for path in paths:
        if request.tsne:
            from flnl.engine.model_file import ModelFile  # torch takes seconds to import

            ModelFile.load(path)
        check_folder(f"{path / FOLDER}", path / FOLDER)
    for record in records:
        files = save(
            record, tsne=request.tsne, places=request.config_dir, data=data, formats=request.format, dpi=request.dpi
        )
        names = ", ".join(dict.fromkeys(file.stem for file in files)) or "nothing to draw yet"
        print_line(f"{record.folder / FOLDER}: {names}")


main = guard.entry("figures", redraw)
