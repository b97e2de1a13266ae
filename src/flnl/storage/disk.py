"""Report a full disk in one line that names the folder."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flnl.core.errors import DiskFullError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""No space left, quota exceeded, or a file larger than the system allows."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Wrap the writing of ``path``.

    Raises:
        DiskFullError: if the disk is full; other errors pass unchanged.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or isinstance(error, DiskFullError):
            raise
        message = f"the disk is full: {path.parent} cannot take {path.name} ({error.strerror}); make room and resume"
        raise DiskFullError(error.errno, message) from error
