"""What crosses between a server and its sites, by type of message."""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flnl.core.method import Method
from flnl.core.payload import size_in_bytes
from flnl.core.stored import name_of
from flnl.sites.policy import revealed
from flnl.storage.atomic import write_atomically

NAME = "crossed.csv"
"""The table of a run, in its folder."""
COLUMNS = ("direction", "what", "messages", "bytes")
MODEL, SCORED_MODEL, RECORDED_MODEL = "model", "scored model", "recorded model"
LAST_MODEL, FRAMES = "last model", "frames"
"""Rows that are no types of message: models; those sent to be scored, to be recorded and at the end, which no run
counts; and all that was handed to the transport, with headers."""


@dataclass
class Traffic:
    """Messages and bytes by direction (``down`` to sites, ``up`` from them) and type."""

    messages: Counter[tuple[str, str]] = field(default_factory=Counter)
    bytes: Counter[tuple[str, str]] = field(default_factory=Counter)

    @classmethod
    def read(cls, path: Path) -> Traffic:
        """What an earlier process has written; nothing if there is no such file."""
        found = cls()
        rows = csv.DictReader(io.StringIO(path.read_text())) if path.exists() else ()
        for row in rows:
            found.messages[row["direction"], row["what"]] = int(row["messages"])
            found.bytes[row["direction"], row["what"]] = int(row["bytes"])
        return found

    def crossed(self, direction: str, what: str, size: int) -> None:
        """Count a value, or frames."""
        self.messages[direction, what] += 1
        self.bytes[direction, what] += size

    def payload(self, direction: str, values: Iterable[Any]) -> None:
        """Count the values of a payload."""
        for value in values:
            self.crossed(direction, name_of(type(value)), size_in_bytes(value))

    def rows(self) -> list[tuple[str, str, int, int]]:
        """Direction, what, messages and bytes; by direction, the largest first, frames last."""
        order = sorted(self.messages, key=lambda key: (key[0], key[1] == FRAMES, -self.bytes[key], key[1]))
        return [(*key, self.messages[key], self.bytes[key]) for key in order]

    def save(self, path: Path) -> None:
        """Write the table."""
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([COLUMNS, *self.rows()])
        write_atomically(path, text.getvalue().encode())


def leaving(method: Method, *, counts: bool, held_out: bool) -> list[str]:
    """What may leave a site with this method besides its model and numbers of samples and steps, a line each.

    Args:
        method: the run's method.
        counts: whether sites tell how many labels are flagged and changed.
        held_out: whether sites score models on samples that they hold out.
    """
    found: dict[type, str] = {}
    for name, exchange in method.exchange.items():
        of = [stage.name for stage in method.stages if name in stage.exchange]
        found |= {kind: f"in {_and(of)}" for kind in exchange.reports if of}
    if method.corrector is not None:
        stages = _and(stage.name for stage in method.stages if stage.correct is not None)
        found |= dict.fromkeys(method.corrector.reports, f"after a correction in {stages}")
    costs = {kind: " (in the clear)" if math.isinf(e) else f" (ε = {e:g})" for kind, e in revealed(method).items()}
    lines = [f"{name_of(kind)} {when}{costs.get(kind, '')}{meaning(kind)}" for kind, when in found.items()]
    asked = dict.fromkeys(kind for stage in method.stages for kind in stage.sampler.asks)
    lines += [f"the outcome of {name_of(kind)}, for its sampler{costs.get(kind, '')}" for kind in asked]
    return [*lines, *beside(counts=counts, held_out=held_out)]


def beside(*, counts: bool, held_out: bool) -> list[str]:
    """What may leave a site with any method."""
    return [
        *(["how many of its labels were flagged and changed"] if counts else []),
        *(
            ["how many samples it holds out, how many of them a model predicts as labelled, and their loss"]
            if held_out
            else []
        ),
    ]


def _and(names: Iterable[str]) -> str:
    return " and ".join(names)


def meaning(kind: type) -> str:
    """The first sentence of a type's docstring."""
    text = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
    return f": {text}" if (text := re.sub(r"^Sent to the server\b[:,]? ?", "", text)) else ""
