"""Options of the small commands."""

import argparse
from pathlib import Path
from typing import NoReturn

from flnl.core.errors import UserError


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command.

        Raises:
            UserError: always.
        """
        raise UserError(f"{message}; see {self.prog} --help")


def add_config_dir(parser: argparse.ArgumentParser) -> None:
    """Let a command be told of folders with configuration files that name classes which a file may mean."""
    parser.add_argument(
        "--config-dir",
        metavar="DIR",
        type=_folder,
        action="append",
        default=[],
        help="a folder laid out as conf/ is, whose files name classes of your own; may be given more than once",
    )


def _folder(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is no folder")
    return path
