"""Write files that the user names on the command line: ``--csv FILE``, ``--figure FILE``.

The user may name a device, a pipe or a link: the data are then written to it, not put in its place as
``flnl.storage.atomic`` does with a run's files.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from flnl.core.errors import DiskFullError, UserError
from flnl.core.special import is_special
from flnl.storage.atomic import write_atomically, writing


def write_output(path: Path, data: bytes) -> None:
    """Write ``data`` directly to a device, pipe or terminal, or atomically to a file or the target of a link.

    If ``path`` is a standard stream of the process (``/dev/stdout``, or the file to which the shell redirects it), the
    data follow what has been printed. A named pipe blocks until it is read.

    Raises:
        OSError: if it cannot be written.
        DiskFullError: if the disk is full.
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


def save_output(what: str, path: Path, data: bytes) -> None:
    """Write a file as ``write_output`` does, and say which one it was if it cannot be written.

    Args:
        what: the file in messages, as in "--csv table.csv".
        path: where it is.
        data: its content.

    Raises:
        UserError: if it cannot be written.
        DiskFullError: if the disk is full.
    """
    try:
        write_output(path, data)
    except DiskFullError:
        raise
    except OSError as error:
        raise UserError(f"{what} cannot be written ({error.strerror})") from error


def check_output(what: str, path: Path) -> None:
    """Check that ``write_output`` can write a file, before the work whose result it will hold.

    Raises:
        UserError: if it cannot.
    """
    try:
        if is_special(path) or _printed_to(path) is not None:
            return
        path = path.resolve() if path.is_symlink() else path
        is_folder, has_place = path.is_dir(), path.parent.is_dir()
    except OSError as error:
        raise UserError(f"{what} cannot be written ({error.strerror})") from error
    if is_folder:
        raise UserError(f"{what} is a folder; name a file")
    if not has_place:
        raise UserError(f"{what}: there is no folder {path.parent}")
    _try(what, path)


def check_folder(what: str, folder: Path) -> None:
    """Check that a folder can be written, or made, before the work whose results it will hold.

    Raises:
        UserError: if it cannot.
    """
    try:
        there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
        is_folder = there.is_dir()
    except OSError as error:
        raise UserError(f"{what} cannot be written ({error.strerror})") from error
    if not is_folder:
        raise UserError(f"{what}: {there} is no folder")
    _try(what, there / (folder.name or "flnl"))


def _try(what: str, path: Path) -> None:
    """Write a file beside ``path``, as ``write_output`` does, and remove it: permissions do not tell of all folders.

    Raises:
        UserError: if it cannot be written.
    """
    if not os.access(path.parent, os.W_OK):
        raise UserError(f"{what} cannot be written: {path.parent} is read-only for you")
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.open("xb").close()
        beside.unlink()
    except OSError as error:
        raise UserError(f"{what} cannot be written ({error.strerror})") from error


def _printed_to(path: Path) -> int | None:
    """The descriptor of the standard stream that goes to ``path``; None if neither does."""
    for number in (1, 2):
        try:
            if os.path.samestat(path.stat(), os.fstat(number)):
                return number
        except OSError:  # the path does not exist, or the stream is closed
            continue
    return None


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
