"""Ctrl-C and SIGTERM: the first signal stops the run after the current round, the second one stops it at once."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType, TracebackType
from typing import Any, Self

from flnl.core.errors import Interrupted


class Interruption:
    """Context manager: records the first signal in ``number``; the second one raises ``Interrupted``."""

    def __init__(self, signals: Sequence[signal.Signals] = (signal.SIGINT, signal.SIGTERM)) -> None:
        self.number: int | None = None
        self._signals = signals
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            self._before = {s: signal.signal(s, self._note) for s in self._signals}
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
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
        print("\nstopping after this round; once more stops at once", file=sys.stderr, flush=True)
