"""What may fail without taking a run with it: it costs a warning of one line."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from flnl.core.errors import in_one_line
from flnl.storage.disk import DiskFullError


@contextmanager
def forgiven(log: logging.Logger, what: str) -> Iterator[None]:
    """Warn that ``what`` happened ("... could not be drawn"), and why, where anything fails inside; go on after it.

    Raises:
        DiskFullError: with no space left, whoever asked has to know.
    """
    try:
        yield
    except DiskFullError:
        raise
    except Exception as error:  # it may be anybody's
        log.warning("%s (%s)", what, in_one_line(error))
