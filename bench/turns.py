"""The measured side of the bench: a process that waits at the border of rounds until it is told to go on.

JSON lines on standard input and output. The first round is for warming up; then the process says that it is ready and
runs as many rounds as it is asked to, and says how long they took.
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
        os.dup2(2, 1)  # what libraries print must not come between the lines
        self._asked, self._left, self._began = 0, 0, 0.0

    def border(self, **about: Any) -> bool:
        """Whether there is another round to run. ``about`` goes with what is said here."""
        self._left -= 1
        if self._left > 0:
            return True
        seconds = time.perf_counter() - self._began
        said = {"seconds": seconds, "rounds": self._asked} if self._asked else {"ready": True}
        self._out.write(json.dumps({**said, **about}) + "\n")
        line = sys.stdin.readline()
        asked = json.loads(line)["rounds"] if line.strip() else 0
        if not asked:
            return False
        self._asked = self._left = asked
        self._began = time.perf_counter()
        return True
