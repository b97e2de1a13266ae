"""The drawing above the slider that moves the cut on the suspicion score."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from flnl.audit.precision import first_cuts
from flnl.audit.result import Audit


@dataclass(frozen=True, eq=False)
class Cut:
    """The share of labels below each cut and their expected precision, as points in a frame of WIDTH x HEIGHT."""

    audit: Audit

    WIDTH, HEIGHT = 100, 40

    @property
    def start(self) -> int:
        """The cut at which the slider begins, as a position in the curve's cuts.

        It is the audit's own cut, or else the one below which there are about as many labels as issues.
        """
        audit, curve = self.audit, self.audit.precision
        if audit.cut is not None:
            return int(np.abs(np.array(curve.cuts) - audit.cut).argmin())
        return int(np.abs(np.array(curve.below) - audit.issues).argmin())

    @property
    def steps(self) -> int:
        """The number of cuts after the first."""
        return len(self.audit.precision.cuts) - 1

    def x(self, at: int) -> float:
        """Where the cut at a position of the curve is."""
        return self.WIDTH * at / self.steps

    def _point(self, at: int, share: float) -> str:
        return f"{self.x(at):g},{self.HEIGHT * (1 - share):.2f}"

    @property
    def area(self) -> str:
        """The points of the share of all labels below each cut."""
        total = max(1, self.audit.size)
        return " ".join(self._point(at, below / total) for at, below in enumerate(self.audit.precision.below))

    @property
    def lines(self) -> Iterator[tuple[str, str]]:
        """The points of each unbroken part of the curve of expected precision, with its class.

        Above the last sample of which another class is likelier, most of what is below a cut is no suspect, and few
        test samples are left to estimate from: there the curve may rise again without reason.
        """
        samples = self.audit.samples
        suspected = samples.predicted != samples.given
        last = int(first_cuts(samples.suspicion_score[suspected]).max(initial=0))
        expected = self.audit.precision.expected
        points = [None if share is None else self._point(at, share) for at, share in enumerate(expected)]
        for part, which in ((points[: last + 1], "precision"), (points[last:], "beyond")):
            for known, run in groupby(part, key=lambda point: point is not None):
                if known:
                    yield " ".join(filter(None, run)), which
