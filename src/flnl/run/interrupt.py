"""Ctrl-C and SIGTERM: the first signal stops the run after the current round, the second one stops it at once.

A run that waits for others stops at the first.
"""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType, TracebackType
from typing import Any, Self

from flnl.core.errors import Interrupted

_ACTIVE: list[Interruption] = []


class InterruptedWaiting(Interrupted):
    """A signal stopped a run that waited for others; its state is that after the last round."""


@contextmanager
def at_once() -> Iterator[None]:
    """What waits for others: within it a signal stops the run at once, also one that has come before.

    Raises:
        InterruptedWaiting: if there is one.
    """
    stop = _ACTIVE[-1] if _ACTIVE else None
    if stop is None:
        yield
        return
    stop.waits = True
    try:
        if stop.number is not None:
            raise InterruptedWaiting(stop.number)
        yield
    finally:
        stop.waits = False


def ended(number: int, frame: FrameType | None) -> None:
    """A signal's handler that stops whatever is being done."""
    raise Interrupted(number)


class Interruption:
    """Context manager: records the first signal in ``number``; the second one raises ``Interrupted``."""

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self.number: int | None = None
        self.waits = False  # for others
        self._signals = signals
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._note) for s in self._signals}
        _ACTIVE.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        _ACTIVE.remove(self)
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.number is not None:
            self._restore()
            raise Interrupted(number)
        self.number = number
        if self.waits:
            raise InterruptedWaiting(number)
        print("\nstopping after this round; once more stops at once", file=sys.stderr, flush=True)
