"""Errors that every layer uses, and the formatting of error messages on one line."""

from __future__ import annotations

import logging
import re
import signal
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class DiskFullError(OSError):
    """There is no disk space left for a file."""

    def __str__(self) -> str:
        return str(self.args[-1])


LONGEST = 240
"""Maximum length of one value in a message, in characters; longer values lose their middle."""


class UserError(Exception):
    """An error the user can fix, in the configuration, the data or the output folder; shown on one line, exit status 2.

    The message names the key to change (``noise.rho``), its current value and what would be accepted.
    """


class PartError(Exception):
    """A part of a method returned something that its protocol does not allow. The message names the part."""


def shortened(text: str) -> str:
    """The text, with its middle elided if it is longer than ``LONGEST``.

    >>> len(shortened("x" * 5000))
    240
    """
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 61]}…{text[-60:]}"


def one_line(text: str) -> str:
    """Escape a message's line breaks and control characters, and shorten its long words.

    >>> one_line("a\\nb")
    'a\\\\nb'
    """
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return re.sub(rf"\S{{{LONGEST + 1},}}", lambda match: shortened(match.group()), printable)


def in_one_line(error: BaseException) -> str:
    """An unexpected error on one line: its class and the first line of its message."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


class RaisedInWorkerError(Exception):
    """The cause of an error that was raised in a worker process.

    Attributes:
        trace: the traceback there.
        line: the last place in the user's own code there, as ``in_users_code`` gives it.
    """

    def __init__(self, trace: str, line: str | None) -> None:
        super().__init__(trace, line)
        self.trace, self.line = trace, line

    def __str__(self) -> str:
        return f"in a worker:\n{self.trace}"


def in_users_code(error: BaseException) -> str | None:
    """The last place in the user's own code that ``error`` has passed, as in ``my_parts/loss.py:20``; None if none.

    Own code is what belongs neither to this package nor to Python, nor is installed beside it. Of an error in a worker
    process it is the place there.
    """
    if isinstance(cause := error.__cause__, RaisedInWorkerError) and cause.line is not None:
        return cause.line
    package, python = Path(__file__).parents[1], Path(sysconfig.get_path("stdlib"))
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        installed = {"site-packages", "dist-packages"} & set(file.parts)
        if file.is_file() and not (installed or file.is_relative_to(package) or file.is_relative_to(python)):
            here = Path.cwd()
            return f"{file.relative_to(here) if file.is_relative_to(here) else file}:{frame.lineno}"
    return None


@contextmanager
def forgiven(log: logging.Logger, what: str) -> Iterator[None]:
    """Log any error inside as a warning that ``what`` happened ("... could not be drawn"), and continue.

    Raises:
        DiskFullError: passed on, because later writes would fail too.
    """
    try:
        yield
    except DiskFullError:
        raise
    except Exception as error:  # user-defined code may raise anything
        log.warning("%s (%s)", what, in_one_line(error))


class Interrupted(BaseException):
    """A signal stopped the run. Not an ``Exception``: it must end a sweep, not only the sweep's current job."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number
