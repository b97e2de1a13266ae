"""A disk that is full, said in one line that names the folder."""

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from flnl.core.errors import DiskFullError

FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
"""No space, no quota left, or a file larger than the system allows this process."""


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """While ``path`` is written.

    Raises:
        DiskFullError: where there is no space for it; other errors come out as they are.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in FULL or isinstance(error, DiskFullError):
            raise
        said = f"the disk is full: {path.parent} cannot take {path.name} ({error.strerror}); make room and resume"
        raise DiskFullError(error.errno, said) from error
