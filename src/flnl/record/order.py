"""The order in which runs began, independent of clocks: every new run takes an increasing number.

Each folder in which runs are searched stores its highest number in ``.order``. A new run takes a number above those of
all such folders, so it comes after all runs that began earlier in any of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from filelock import FileLock, Timeout

from flnl.storage.atomic import write_atomically

log = logging.getLogger(__name__)

COUNTER, LOCK = ".order", ".order.lock"
SECONDS = 10.0
"""Timeout for the locks; other runs hold them for milliseconds."""


def take(roots: Sequence[Path], highest: Callable[[Path], int]) -> int:
    """Take a number above all numbers taken in any of the existing ``roots``, and store it in all of them.

    If it cannot be stored, the number is still above those that can be read; the next run may take the same number, and
    then their clocks decide.

    Args:
        roots: folders in which runs are searched.
        highest: returns the highest number among the runs below a folder; called if the folder has no readable counter.
    """
    there = sorted({root.resolve() for root in roots if root.is_dir()})
    with ExitStack() as locks:
        try:
            for root in there:  # always in the same order, to avoid deadlocks
                locks.enter_context(FileLock(root / LOCK, timeout=SECONDS))
        except (OSError, Timeout) as error:
            log.debug("the order of runs could not be locked: %s", error)
        taken = 1 + max((_highest(root, highest) for root in there), default=0)
        for root in there:
            try:
                write_atomically(root / COUNTER, f"{taken}\n".encode())
            except OSError as error:
                log.debug("the order of runs could not be stored in %s: %s", root, error)
    return taken


def _highest(root: Path, highest: Callable[[Path], int]) -> int:
    """The highest number taken in a folder."""
    try:
        return int((root / COUNTER).read_text())
    except (OSError, ValueError):
        return highest(root)
