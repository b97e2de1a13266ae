"""What is printed: one line each, in which a name from a file can neither move the cursor nor start a line of its own.

File names, class names and values of a configuration may hold any character, those that a terminal obeys included.
Whatever prints such a name prints it through here.
"""

from __future__ import annotations

import logging
import re
import sys
from typing import TYPE_CHECKING, TextIO

from flnl.core.credentials import redacted

if TYPE_CHECKING:
    from rich.text import Text

_OBEYED = re.compile(
    "["
    "\x00-\x1f\x7f-\x9f"  # control characters: escape sequences begin with one, and so does a new line
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # these turn the direction in which text is shown
    "\u2028\u2029"  # separators of lines and paragraphs
    "\ud800-\udfff"  # bytes of a file name that are no text; printing one fails
    "]"
)


def visible(text: object) -> str:
    r"""``text`` with every character that a terminal would obey written as Python writes it.

    >>> print(visible("a\x1b[2Jb\n"))
    a\x1b[2Jb\n
    >>> print(visible("caf\udce9"))
    caf\xe9
    """
    return _OBEYED.sub(_written, str(text))


def _written(match: re.Match[str]) -> str:
    code = ord(match[0])
    if 0xDC80 <= code <= 0xDCFF:  # how Python holds a byte of a file name that is no text
        return f"\\x{code - 0xDC00:02x}"
    return match[0].encode("unicode_escape").decode()


def print_line(text: object, *, to: TextIO | None = None) -> None:
    """Print one line, visible and without credentials, at once: on the standard output, or on another stream."""
    print(visible(redacted(str(text))), file=sys.stdout if to is None else to, flush=True)


def cell(text: object, style: str = "") -> Text:
    """``text`` for a table of rich, which would take ``[red]`` or ``:smile:`` in a string for its own."""
    from rich.text import Text

    return Text(visible(redacted(str(text))), style)


class Lines(logging.Formatter):
    """Log messages as visible lines; a traceback keeps its own lines."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 (the name is logging's)
        """The line of a record."""
        return visible(redacted(super().formatMessage(record)))


def log_to_stderr() -> None:
    """Send warnings to the standard error, a line each; nothing changes where a handler is at work already."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Lines("%(levelname)s: %(message)s"))
    logging.basicConfig(level=logging.WARNING, handlers=[handler])
