"""Safe terminal output: one line per message, with control characters from file names and the like escaped.

File names, class names and configuration values may contain any character, including terminal control sequences. All
code that prints such values uses this module.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import shutil
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from flnl.console.credentials import redacted

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_CONTROL = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters, including line breaks and the start of escape sequences
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # these change the direction of text
    "\u2028\u2029"  # line and paragraph separators
    "\ud800-\udfff"  # undecodable bytes of a file name; printing one raises an error
    "]"
)


MINUTE, HOUR = 60.0, 3600.0
MANY_HOURS = 100
"""From so many hours on, a time is shown in days."""


def visible(text: object) -> str:
    r"""``text`` with every control character escaped as in Python's string literals.

    >>> print(visible("a\x1b[2Jb\n"))
    a\x1b[2Jb\n
    >>> print(visible("caf\udce9"))
    caf\xe9
    """
    return _CONTROL.sub(_escaped, str(text))


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # Python's surrogate escape of an undecodable byte
        return f"\\x{code - 0xDC00:02x}"
    return match[0].encode("unicode_escape").decode()


def silence(stream: TextIO) -> None:
    """Send what will be written to ``stream``, and what it holds back, to nobody."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


@contextmanager
def _unheard(stream: TextIO) -> Iterator[None]:
    """Drop what is written to a terminal or pipe that was closed: nobody reads it, and who writes it goes on."""
    try:
        yield
    except BrokenPipeError:
        silence(stream)
    except OSError as error:
        if error.errno != errno.EIO:
            raise


class _Lasting:
    """A stream that may outlive its reader."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Write a text."""
        with _unheard(self._stream):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """Write what is held back."""
        with _unheard(self._stream):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def console(*, stderr: bool = False) -> Console:
    """A console as wide as its terminal, which may be closed; without a terminal, wide enough for whole tables."""
    from rich.console import Console

    file = cast("IO[str]", _Lasting(sys.stderr if stderr else sys.stdout))
    found = Console(file=file)
    return found if found.is_terminal else Console(file=file, width=200)


def print_line(text: object, *, to: TextIO | None = None) -> None:
    """Print one line, escaped and without credentials, to standard output or another stream, and flush it."""
    stream = sys.stdout if to is None else to
    with _unheard(stream):
        print(visible(redacted(str(text))), file=stream, flush=True)


ROW, BAR = 76, "  | "
"""Columns of a row at most, and what stands before one that is no line's beginning."""


def rows(line: str) -> list[str]:
    """A line that fits the terminal in rows, none of which it wraps, all but the first behind a bar.

    So a stranger's text at the end of a line shows no line of its own, however long it is.
    """
    width = max(min(ROW, shutil.get_terminal_size().columns - 1) - len(BAR), 2)
    found, used = [""], 0
    for sign in line:
        columns = 1 if sign.isascii() else 2  # at most: libraries and terminals count some signs otherwise
        if used + columns > width:
            found.append(BAR)
            used = 0
        found[-1] += sign
        used += columns
    return found


def print_rows(text: object) -> None:
    """As ``print_line``, in ``rows``."""
    with _unheard(sys.stdout):
        print("\n".join(rows(visible(redacted(str(text))))), flush=True)


def cell(text: object, style: str = "") -> Text:
    """``text`` for a rich table, which would interpret ``[red]`` or ``:smile:`` in a plain string."""
    from rich.text import Text

    return Text(visible(redacted(str(text))), style)


def print_table(header: Sequence[str], rows: Iterable[Sequence[str]], *, left: Collection[int], **look: Any) -> None:
    """Print a table on a terminal, and tab-separated lines elsewhere.

    Args:
        header: the columns.
        rows: their texts.
        left: the numbers of columns that are aligned left; others are aligned right.
        look: of the terminal's table, as ``rich.table.Table`` takes it.
    """
    from rich.console import Console
    from rich.table import Table

    console = Console(markup=False, highlight=False)
    if not console.is_terminal:
        for row in (header, *rows):
            print("\t".join(map(visible, row)))
        return
    table = Table(**look)
    for i, name in enumerate(header):
        table.add_column(cell(name), overflow="fold", justify="left" if i in left else "right")
    for row in rows:
        table.add_row(*map(cell, row))
    console.print(table)


def duration(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> duration(42.0), duration(600.0), duration(9000.0), duration(864000.0)
    ('42 s', '10 min', '2.5 h', '10 days')
    """
    if seconds < MINUTE:
        return f"{seconds:.0f} s"
    if seconds < HOUR:
        return f"{seconds / MINUTE:.0f} min"
    return f"{seconds / HOUR:.1f} h" if seconds < MANY_HOURS * HOUR else f"{seconds / (24 * HOUR):,.0f} days"


LOGGED, TRACED = 10**5, 2000
"""Characters of a traceback, and of a line of it."""


class LineFormatter(logging.Formatter):
    """Formats log messages as single escaped lines, warnings with their level; tracebacks keep theirs, behind a bar."""

    def formatException(self, ei: Any) -> str:  # noqa: N802
        """Format a traceback, whose text may be a stranger's."""
        lines = redacted(super().formatException(ei)[-LOGGED:]).split("\n")
        return "\n".join(row for line in lines for row in rows(f"{BAR}{visible(line[:TRACED])}"))

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name is logging's)
        """Format a record's message."""
        text = super().formatMessage(record)
        return visible(redacted(text if record.levelno < logging.WARNING else f"{record.levelname}: {text}"))


def log_to_stderr() -> None:
    """Log this package's messages and all warnings to standard error, one line each.

    Nothing changes if a handler is already configured.
    """
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(LineFormatter("%(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
    logging.getLogger("flnl").setLevel(logging.INFO)
