"""Progress over things that are counted: a bar on a terminal, elsewhere a line now and then, on standard error."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from flnl.console.terminal import console, print_line

if TYPE_CHECKING:
    from rich.progress import Progress

QUIET_SECONDS = 30.0
"""Without a terminal, at least this long from one line to the next."""


def bars() -> Progress:
    """Bars that count towards a total, with the time left; they disappear when they are stopped."""
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    done = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    left = (TextColumn("left"), TimeRemainingColumn())
    return Progress(*done, *left, console=console(stderr=True), transient=True)


@contextmanager
def counting(total: int, *, bar: str, begins: str, after: Callable[[int], str]) -> Iterator[Callable[[int], None]]:
    """Show progress while ``total`` things are done.

    Args:
        total: number of things.
        bar: what the bar on a terminal is called.
        begins: the line that tells of the beginning where there is no terminal.
        after: the line after so many things there.

    Yields:
        A function to call with the number of things that have been done since it was last called.
    """
    progress = bars()
    if progress.console.is_terminal:
        with progress:
            task = progress.add_task(bar, total=total)
            yield lambda more: progress.advance(task, more)
        return
    print_line(begins, to=sys.stderr)
    done, printed = 0, time.monotonic()

    def advance(more: int) -> None:
        nonlocal done, printed
        done += more
        if time.monotonic() - printed > QUIET_SECONDS:
            printed = time.monotonic()
            print_line(after(done), to=sys.stderr)

    yield advance
