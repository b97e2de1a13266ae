"""Options of the small commands."""

import argparse
from typing import NoReturn

from src.errors import UserError


class Parser(argparse.ArgumentParser):
    """A parser whose complaints are one line."""

    def error(self, message: str) -> NoReturn:
        """Refuse the command.

        Raises:
            UserError: always.
        """
        raise UserError(f"{message}; see {self.prog} --help")
