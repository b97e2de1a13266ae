"""Files that the user names on the command line to be written: ``--csv FILE``, ``--figure FILE``.

What lies there already is the user's own choice: a device, a pipe or a link gets what is written. A run's record is the
other way round: ``flnl.storage.atomic`` replaces whatever lies in its place.
"""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

from flnl.storage.atomic import write_atomically
from flnl.storage.disk import writing


def write_output(path: Path, data: bytes) -> None:
    """Write ``data``: to a device, pipe or terminal as it is; else whole or not at all, to the file that a link names.

    Where ``path`` is what the process prints to (``/dev/stdout``, or a file that the shell has opened for it), the data
    follow what has been printed. A pipe with a name waits until somebody reads it.

    Raises:
        OSError: if it cannot be written.
        DiskFullError: where there is no space for it.
    """
    if (stream := _printed_to(path)) is not None:
        sys.stdout.flush()
        sys.stderr.flush()
        with writing(path), os.fdopen(os.dup(stream), "wb") as file:
            file.write(data)
    elif is_special(path):
        with writing(path), path.open("wb", buffering=0) as device:
            _write_all(device.fileno(), data)
    else:
        write_atomically(path.resolve() if path.is_symlink() else path, data)


def is_special(path: Path) -> bool:
    """Whether something other than a file or folder is there: a device, a pipe or a socket; of a link, where it leads.

    Raises:
        OSError: if that cannot be told.
    """
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _printed_to(path: Path) -> int | None:
    """The number of the standard stream that goes to ``path``; None where neither does."""
    for number in (1, 2):
        try:
            if os.path.samestat(path.stat(), os.fstat(number)):
                return number
        except OSError:  # nothing is there, or the stream is closed
            continue
    return None


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
