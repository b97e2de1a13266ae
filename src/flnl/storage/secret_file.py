"""A secret of 32 random bytes in a file that only its owner can read."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from flnl.core.errors import UserError

SIZE = 32
"""Bytes of a secret."""


def state_folder() -> Path:
    """The user's folder for state of this package: below ``XDG_STATE_HOME``, or else ``~/.local/state``.

    Raises:
        UserError: if neither this variable nor ``HOME`` is an absolute path, or there is no such home.
    """
    for name, below in (("XDG_STATE_HOME", "flnl"), ("HOME", ".local/state/flnl")):
        place = Path(os.environ.get(name, ""))
        if place.is_absolute() and (name != "HOME" or place.is_dir()):
            return place / below
    raise UserError(
        "neither XDG_STATE_HOME nor HOME is set to an absolute path, or there is no such home, so no folder for the "
        "secret: name --secret FILE"
    )


def made_once(path: Path) -> bool:
    """Make a secret at ``path`` unless something is there; whether it was made.

    The file appears whole, and of processes that make it at the same time one does.

    Raises:
        UserError: if it cannot be made.
    """
    if os.path.lexists(path):
        return False
    beside: str | None = None
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        opened, beside = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # of mode 600
        with os.fdopen(opened, "wb") as file:
            file.write(os.urandom(SIZE))
            file.flush()
            os.fsync(opened)
        return _linked(beside, path)
    except OSError as error:
        raise UserError(f"{path}: no secret can be made there ({error.strerror}); name another file") from error
    finally:
        if beside is not None:
            Path(beside).unlink()


def _linked(beside: str, path: Path) -> bool:
    """Give the file ``beside`` the name ``path``, unless it is taken; unlike renaming, this replaces nothing."""
    try:
        path.hardlink_to(beside)
    except FileExistsError:
        return False
    return True


def read(path: Path) -> bytes:
    """The secret at ``path``.

    Raises:
        UserError: if it cannot be read, is no file of 32 bytes, or anybody but its owner could know it.
    """
    try:
        opened = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe would wait for a writer
        with os.fdopen(opened, "rb") as file:
            about = os.fstat(opened)
            if not stat.S_ISREG(about.st_mode) or about.st_size != SIZE:
                raise UserError(
                    f"{path} is no secret: it should be a file of {SIZE} random bytes; name one that does not exist, "
                    "and it is made"
                )
            if about.st_mode & 0o077 or about.st_uid != os.geteuid():
                raise UserError(
                    f"{path} may be known to others, by its mode {stat.S_IMODE(about.st_mode):o} or owner: make "
                    "another secret, with mode 600, or if nobody has read this one, chmod 600 it as its owner"
                )
            return file.read(SIZE)
    except OSError as error:
        raise UserError(f"{path}, the secret of label privacy, cannot be read ({error.strerror})") from error
