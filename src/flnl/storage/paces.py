"""The file in which ``flnl doctor`` keeps how long training takes here, for plans and sweeps."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from filelock import FileLock
from pydantic import Field, TypeAdapter

from flnl.storage.input_file import read_json_file
from flnl.storage.output_file import write_output

NAME, LOCK = "paces.json", ".paces.lock"
FORMAT = 1
SECONDS = 10.0
"""Timeout for the lock; others hold it for milliseconds."""
NOISE = 1.05
"""Ratio of two times that says nothing."""

Kind = tuple[str, str, str, int]
"""Data set, network, precision and batch size of a ``Pace``."""


@dataclass(frozen=True)
class Pace:
    """The time of local training of plain SGD with cross-entropy, one process with one thread on a CPU."""

    dataset: str  # as ``flnl tables`` names it, with its size if only a part of it is used
    model: str  # class and arguments
    batch: int
    device: str  # name of the GPU, or of the processor
    gpu: bool
    seconds: Annotated[float, Field(gt=0, allow_inf_nan=False)]  # of a pass over all training images
    precision: str = "32"  # early files lack it
    runs: Annotated[int, Field(gt=0)] | None = None  # as many at once on the GPU share the pass; None: timed alone

    @property
    def kind(self) -> Kind:
        """What was trained."""
        return self.dataset, self.model, self.precision, self.batch


@dataclass(frozen=True)
class Paces:
    """All paces that were measured on this machine."""

    values: Sequence[Pace] = ()

    @classmethod
    def load(cls, folder: Path) -> Paces:
        """Those kept in ``folder``; none if there is no such file, or if another version has written it."""
        try:
            text = read_json_file(folder / NAME)
            return cls(_ROWS.validate_python(text["paces"])) if text["format"] == FORMAT else cls()
        except (OSError, ValueError, LookupError, TypeError):
            return cls()

    @classmethod
    def add(cls, folder: Path, new: Sequence[Pace]) -> None:
        """Put ``new`` into the file in ``folder``, as ``including``; several processes may do so at a time.

        Raises:
            OSError: if it cannot be written.
            Timeout: if another process has held the file for ``SECONDS``.
        """
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / LOCK, timeout=SECONDS):
            cls.load(folder).including(new).save(folder)

    def runs_at_once(self, kinds: Collection[Kind], gpus: Collection[str]) -> int | None:
        """How many runs of these kinds at once train most on GPUs of these names: the fewest that come near the most.

        It is the smallest number if they differ, and None if one was not timed.
        """
        best = []
        for kind in kinds:
            for gpu in gpus:
                of = [pace for pace in self.values if (pace.kind, pace.device) == (kind, gpu)]
                seconds = {pace.runs: pace.seconds for pace in of if pace.runs is not None}
                if not seconds:
                    return None
                least = min(seconds.values())
                best.append(min(runs for runs, took in seconds.items() if took <= NOISE * least))
        return min(best, default=None)

    def including(self, new: Sequence[Pace]) -> Paces:
        """With ``new`` in place of earlier ones of the same training on the same device.

        That of one run at once begins a measurement, so it takes the place of all earlier numbers of runs.
        """
        fresh = {replace(pace, seconds=0.0) for pace in new}
        begun = {_alone(pace) for pace in new if pace.runs == 1}

        def stays(pace: Pace) -> bool:
            measured_again = pace.runs is not None and _alone(pace) in begun
            return replace(pace, seconds=0.0) not in fresh and not measured_again

        return Paces((*filter(stays, self.values), *new))

    def save(self, folder: Path) -> None:
        """Write the file into ``folder``.

        Raises:
            OSError: if it cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        text = {"format": FORMAT, "paces": [asdict(pace) for pace in self.values]}
        write_output(folder / NAME, (json.dumps(text, indent=1) + "\n").encode())


_ROWS = TypeAdapter(tuple[Pace, ...])


def _alone(pace: Pace) -> Pace:
    """What was trained, and where, by one run."""
    return replace(pace, seconds=0.0, runs=None)
