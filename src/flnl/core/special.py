"""Devices, pipes and sockets: what a path may name besides files and folders, and what may never end."""

from __future__ import annotations

import errno
import stat
from pathlib import Path


def is_special(path: Path) -> bool:
    """Whether ``path``, or the target of a link, exists and is neither a file nor a folder: a device, pipe or socket.

    Raises:
        OSError: if the path cannot be examined.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def refuse_special(path: Path) -> None:
    """Refuse what is neither a file nor a folder, before it is opened.

    Raises:
        OSError: if ``path`` is a device, a pipe or a socket, or cannot be examined.
    """
    if is_special(path):
        raise OSError(errno.EINVAL, "it is a device, a pipe or a socket, not a file", str(path))
