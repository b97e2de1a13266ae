"""What a command needs of its process that schedulers, containers and shells may have left out."""

from __future__ import annotations

import os
import sys

NOWHERE = "/nonexistent"
"""The home of a user without one, as in ``/etc/passwd`` of Debian: what would be cached there is not."""


def complete() -> None:
    """Open standard streams that are closed, and name a home if there is none.

    A file that is opened while a standard stream is closed would get its number, and with it what is printed.
    """
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(opened, True)  # processes that are started here need them, too
    os.close(opened)
    sys.stdin = sys.stdin or os.fdopen(0)
    sys.stdout = sys.stdout or os.fdopen(1, "w")
    sys.stderr = sys.stderr or os.fdopen(2, "w")
    if os.path.expanduser("~") == "~":  # noqa: PTH111 (Path.home() raises an error)
        os.environ["HOME"] = NOWHERE
