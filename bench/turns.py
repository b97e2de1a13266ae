"""The measured side of the benchmark: a process that waits at the end of rounds until it may continue.

It communicates by JSON lines on standard input and output. The first round is for warming up; then the process reports
that it is ready, runs the requested number of rounds, and reports their time.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


class Turns:
    """Called at the end of every round; returns when the next one may begin."""

    def __init__(self) -> None:
        self._out = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # output of libraries must not mix with the messages
        self._requested, self._left, self._began = 0, 0, 0.0

    def border(self, **about: Any) -> bool:
        """Whether to run another round. ``about`` is added to the message."""
        self._left -= 1
        if self._left > 0:
            return True
        seconds = time.perf_counter() - self._began
        message = {"seconds": seconds, "rounds": self._requested} if self._requested else {"ready": True}
        self._out.write(json.dumps({**message, **about}) + "\n")
        line = sys.stdin.readline()
        requested = json.loads(line)["rounds"] if line.strip() else 0
        if not requested:
            return False
        self._requested = self._left = requested
        self._began = time.perf_counter()
        return True
