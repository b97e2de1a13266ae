"""What may fail at the end of a run: one line of warning, but for a full disk."""

import errno
import logging

import pytest

from flnl.core.errors import DiskFullError, forgiven

log = logging.getLogger("tests.forgiving")


def test_a_failure_costs_one_line(caplog: pytest.LogCaptureFixture) -> None:
    for error in (ValueError("first\nsecond"), KeyError("a"), RuntimeError()):
        with forgiven(log, "the figure could not be drawn"):
            raise error
    assert [r.getMessage() for r in caplog.records] == [
        "the figure could not be drawn (ValueError: first)",
        "the figure could not be drawn (KeyError: 'a')",
        "the figure could not be drawn (RuntimeError: )",
    ]


def test_a_full_disk_and_an_interruption_are_not_forgiven(caplog: pytest.LogCaptureFixture) -> None:
    for error in (DiskFullError(errno.ENOSPC, "full"), KeyboardInterrupt()):
        with pytest.raises(type(error)), forgiven(log, "it could not be written"):
            raise error
    assert not caplog.records
