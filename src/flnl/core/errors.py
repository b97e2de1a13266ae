"""What goes wrong: the errors that every layer knows, and how an unforeseen one reads in one line."""

from __future__ import annotations

import logging
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager


class DiskFullError(OSError):
    """There is no space for a file."""

    def __str__(self) -> str:
        return str(self.args[-1])


LONGEST = 240
"""Characters of one value in a message; the middle of a longer one is left out."""


class UserError(Exception):
    """A mistake in the configuration, the data or the place to write to; shown as one line, exit status 2.

    The message names the key a person would type (``noise.rho``), the value found and what would be accepted.
    """


def shortened(text: str) -> str:
    """The text, without its middle where it is long.

    >>> len(shortened("x" * 5000))
    240
    """
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 61]}…{text[-60:]}"


def one_line(text: str) -> str:
    """A message as a terminal shows it: what would break the line or steer the terminal is escaped.

    >>> one_line("a\\nb")
    'a\\\\nb'
    """
    printable = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return re.sub(rf"\S{{{LONGEST + 1},}}", lambda found: shortened(found.group()), printable)


def in_one_line(error: BaseException) -> str:
    """An unforeseen error: its kind, and the first line of what it says."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


@contextmanager
def forgiven(log: logging.Logger, what: str) -> Iterator[None]:
    """Warn that ``what`` happened ("... could not be drawn"), and why, where anything fails inside; go on after it.

    Raises:
        DiskFullError: with no space left, whoever asked has to know.
    """
    try:
        yield
    except DiskFullError:
        raise
    except Exception as error:  # it may be anybody's
        log.warning("%s (%s)", what, in_one_line(error))


class Interrupted(BaseException):
    """The run was asked to stop, and has. Not an ``Exception``: a sweep must end with it, not go to its next job."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.exit_code = 128 + number
