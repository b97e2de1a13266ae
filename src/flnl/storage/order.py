"""Which of several runs began last, without asking a clock: a number that every new run takes.

A folder below which runs are looked for keeps the highest number taken in ``.order``. A run takes one above those of
all such folders, so in whichever of them it is found later, it comes after what was begun there before it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from flnl.storage.atomic import write_atomically

log = logging.getLogger(__name__)

COUNTER, LOCK = ".order", ".order.lock"
SECONDS = 10.0
"""How long to wait for others that take a number; it takes them milliseconds."""


def take(roots: Sequence[Path], highest: Callable[[Path], int]) -> int:
    """A number above all that were taken in any of ``roots``, as far as they exist, written down in all of them.

    Where the order cannot be written down, the number is still above those that can be read: the next run may take it,
    too, and then the two are told apart by their clocks.

    Args:
        roots: folders below which runs are looked for.
        highest: the highest number among the runs below a folder, asked where no counter can be read.
    """
    there = sorted({root.resolve() for root in roots if root.is_dir()})
    with ExitStack() as locks:
        try:
            for root in there:  # in one order everywhere, so that nobody waits in a circle
                locks.enter_context(FileLock(root / LOCK, timeout=SECONDS))
        except (OSError, Timeout) as error:
            log.debug("the order of runs is not locked: %s", error)
        taken = 1 + max((_highest(root, highest) for root in there), default=0)
        for root in there:
            try:
                write_atomically(root / COUNTER, f"{taken}\n".encode())
            except OSError as error:
                log.debug("the order of runs is not kept in %s: %s", root, error)
    return taken


def _highest(root: Path, highest: Callable[[Path], int]) -> int:
    """The highest number taken in a folder."""
    try:
        return int((root / COUNTER).read_text())
    except (OSError, ValueError):
        return highest(root)


def number(record: Mapping[str, Any]) -> int:
    """The number in a run's record; 0 of one that has none, as runs once were recorded."""
    found = record.get("order")
    return found if type(found) is int and found > 0 else 0


def age(record: Mapping[str, Any]) -> tuple[int, float]:
    """What runs are sorted by, the newest last: their numbers, and their clocks where these are equal."""
    started = record.get("started")
    return number(record), float(started) if isinstance(started, int | float) else 0.0
