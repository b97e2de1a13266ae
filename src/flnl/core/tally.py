"""Counts the samples that pass a run's networks: the work of training and of scoring, whatever the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Tally:
    """Numbers of samples that have passed a network; one that passes both networks of a pair counts twice."""

    trained: int = 0  # forward and backward, in steps of local training
    scored: int = 0  # forward only

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.trained += other.trained
        self.scored += other.scored


class Meter:
    """What counts the passes of one network, all by the one that calls it."""

    def __init__(self) -> None:
        self._tally = Tally()
        self._clients = 1

    def passed(self, samples: int, *, trained: bool) -> None:
        """Count ``samples``, of each client for which the call stands."""
        samples *= self._clients
        if trained:
            self._tally.trained += samples
        else:
            self._tally.scored += samples

    def add(self, tally: Tally) -> None:
        """Add what was counted apart, or in another process."""
        self._tally.add(tally)

    def pop(self) -> Tally:
        """What was counted since the last call."""
        taken, self._tally = self._tally, Tally()
        return taken

    @contextmanager
    def into(self, tally: Tally) -> Iterator[None]:
        """Within this, count into ``tally`` instead."""
        outer, self._tally = self._tally, tally
        try:
            yield
        finally:
            self._tally = outer

    @contextmanager
    def standing_for(self, clients: int) -> Iterator[None]:
        """Within this, a call stands for so many clients, each of which passes as many samples."""
        outer, self._clients = self._clients, clients
        try:
            yield
        finally:
            self._clients = outer
