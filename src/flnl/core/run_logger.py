"""Loggers: where a run's metrics go besides the files in its folder."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class LoggedRun:
    """A run, as its loggers know it."""

    folder: Path
    key: str  # the run's key
    config: Mapping[str, Any]  # resolved, without credentials
    name: str  # tells the run apart: method, data set, what differs from the defaults, seed
    group: str  # the same without the seed: shared by the repetitions of a setting
    method: str


class OpenLogger(ABC):
    """A logger during a run. A method that raises is logged once, and the run goes on without the logger."""

    @abstractmethod
    def log(self, row: Mapping[str, float | str], step: int) -> None:
        """Take the values of a round: ``train/loss``, ``stage``, and ``test/accuracy`` if the round was evaluated.

        Args:
            row: numbers by name; ``stage`` is a text.
            step: number of the round, from 1.
        """

    def images(self, files: Sequence[Path], step: int) -> None:
        """Take the figures that were drawn at the end of the run."""
        return

    def products(self, files: Sequence[Path]) -> None:
        """Take the files that the run has produced: ``model.pt`` and ``labels.csv``."""
        return

    def close(self, *, failed: bool, summary: Mapping[str, Any]) -> str | None:
        """End; return a folder of W&B that is not synchronised yet, or else None.

        Args:
            failed: whether the run ended with an error.
            summary: the numbers of ``result.json``.
        """
        return None


class Logger(ABC):
    """A logger as it is configured, in ``logger``."""

    def check(self) -> None:
        """Check, before the run starts, that the logger can be used here.

        Raises:
            UserError: if it cannot, such as for want of a package.
        """
        return

    @abstractmethod
    def open(self, run: LoggedRun) -> OpenLogger:
        """Start to log a run, which may be one that continues."""
