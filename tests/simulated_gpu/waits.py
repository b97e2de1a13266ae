"""Counts what makes the host wait for the device, or copies between the two, and where the project asked for it."""

import traceback
import warnings
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

PACKAGE = str(Path(__file__).resolve().parents[2] / "src") + "/"

WAITING = ("value", "shape", "mask", "d2h", "h2d")
"""Kinds of event in which the host waits: it reads a value, a shape or a mask, or copies to or from pageable memory."""
RACE = "d2h_async"
"""A copy to the host that nobody waited for: its values may not be there yet."""

Mode = Literal["default", "warn", "error"]


@dataclass(frozen=True)
class Event:
    """One operation that waited or copied."""

    kind: str  # of ``WAITING``, or d2h_async, h2d_async, h2d_index (an index of the CPU)
    operation: str
    place: str  # the line of the package, as file:line, and those that called it


@dataclass
class Waits:
    """Listens to the device. With ``places``, events are recorded with their place, which takes time."""

    mode: Mode = "default"
    places: bool = False
    counted: Counter[Event] = field(default_factory=Counter)

    def __call__(self, kind: str, operation: str) -> None:
        """Called by the device for each event.

        Raises:
            RuntimeError: if it waits and ``mode`` is error, as CUDA does.
        """
        if self.places:
            self.counted[Event(kind, operation, _place())] += 1
        if kind in (*WAITING, RACE) and self.mode != "default":
            message = f"called a synchronizing CUDA operation ({kind} {operation})"
            if self.mode == "error":
                raise RuntimeError(message)
            warnings.warn(message, stacklevel=2)

    @contextmanager
    def counting(self) -> Iterator[Counter[Event]]:
        """Record events with their places inside the block; yields the counter."""
        self.counted, self.places = Counter(), True
        try:
            yield self.counted
        finally:
            self.places = False


def _place() -> str:
    frames = [frame for frame in traceback.extract_stack(limit=60) if frame.filename.startswith(PACKAGE)]
    return " < ".join(f"{f.filename.removeprefix(PACKAGE)}:{f.lineno}" for f in reversed(frames[-4:]))
