"""Argument parsing of the small commands."""

import argparse
from pathlib import Path
from typing import NoReturn

from flnl.config.folders import refuse_shadowed
from flnl.core.errors import UserError


class Parser(argparse.ArgumentParser):
    """An argument parser that reports errors in one line."""

    def error(self, message: str) -> NoReturn:
        """Report a wrong argument.

        Raises:
            UserError: always.
        """
        raise UserError(f"{message}; see {self.prog} --help")


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    """Add ``--config-dir``: folders whose configuration files name the user's classes, which stored files refer to."""
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        type=_folder,
        action="append",
        default=[],
        help="a folder with the layout of conf/, whose files name your classes; may be given more than once",
    )


def add_data(parser: argparse.ArgumentParser) -> None:
    """Add arguments KEY=VALUE: where a run's data lie here; ``flnl.config.recorded.places_of`` reads them."""
    parser.add_argument(
        "data",
        metavar="KEY=PATH",
        nargs="*",
        help="where the run's data lie here if they have moved, as in dataset.root=FOLDER; also partition.path, "
        "noise.path ...",
    )


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add ``--trust``: paths of the user's own code that a stored file may name."""
    parser.add_argument(
        "--trust",
        metavar="PATH",
        action="append",
        default=[],
        help="the dotted path of a network of your own that the model may import, as it was given by model.path=PATH;"
        " may be given more than once",
    )


def _folder(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is not a folder")
    try:
        refuse_shadowed(path)
    except UserError as error:
        raise argparse.ArgumentTypeError(str(error).removeprefix("--config-dir: ")) from None
    return path
